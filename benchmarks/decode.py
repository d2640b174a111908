"""Decoding speed beside CTranslate2 and Hugging Face: a table for each case, engines timed in turn.

python benchmarks/decode.py [--rounds=7] [--threads=2] [--only=NAME,…] [--cases=16x4,16x1,…]
python benchmarks/decode.py --caches=local [--cases=16x4,…]

Each engine is a process of its own (benchmarks/_peers/decode_*.py), fed by pipes. `make
bench-decode` installs the peers into build/peers. The dense models of CTranslate2 and of this
package have the same random weights. Sources have --steps tokens and as many steps are taken. A
case such as 16x4 is 16 sentences with a beam of 4. Every round times each engine once; a ratio is
the median of the rounds' ratios. --latency prints percentiles, for which 100 rounds are enough.
--caches compares the kinds of caches (decoding/cache.py) with our dense model alone.

On an idle machine use wall time. On a shared machine use processor time, which is that of all
threads.
"""

import argparse
import functools
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from peers import DENSE, PEERS_PYTHON, Peer, ratio

from lingvo_moe.reporting.table import Table

SAME, TWIN = "ours (dense)", "ours (dense twin)"
_CASES = "16x4,16x1,64x4,64x1,1x4,1x1"


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="names of engines, separated by commas")
    parser.add_argument("--cases", default=_CASES, help="SENTENCESxBEAM, separated by commas")
    parser.add_argument(
        "--shape", default="small", choices=("small", "tiny"), help="shape of the models"
    )
    parser.add_argument(
        "--steps", type=int, default=32, help="number of decoding steps and of source tokens"
    )
    parser.add_argument("--latency", action="store_true", help="print percentiles of wall time too")
    parser.add_argument("--caches", choices=("local", "xla"), help="compare caches in this runtime")
    args = parser.parse_args()
    os.environ |= {"PEERS_SHAPE": args.shape, "PEERS_STEPS": str(args.steps)}
    # Threads that spin while they wait would take processor time from the other engines.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    with tempfile.TemporaryDirectory() as directory:
        weights = str(Path(directory) / "weights.npz")

        def ours(*overrides, runtime="local", path="-"):
            return Peer(sys.executable, "decode_ours.py", args.threads, runtime, path, *overrides)

        def ctranslate2(compute_type):
            script = "decode_ctranslate2.py"
            return Peer(PEERS_PYTHON, script, args.threads, weights, compute_type)

        checkpoint = str(Path(directory) / "nllb_moe")

        def hugging_face(*arguments):
            return Peer(PEERS_PYTHON, "decode_hugging_face.py", args.threads, *arguments)

        def imported(runtime):
            return Peer(sys.executable, "decode_imported.py", args.threads, runtime, checkpoint)

        starts = {
            SAME: lambda: ours("model.moe=None", path=weights),
            "ours (dense) by XLA": lambda: ours("model.moe=None", runtime="xla"),
            "CTranslate2 (float32)": lambda: ctranslate2("float32"),
            "CTranslate2 (int8)": lambda: ctranslate2("int8"),
            "Hugging Face M2M-100": hugging_face,
            TWIN: lambda: ours(*DENSE),
            "ours (8 experts)": lambda: ours(),
            "ours (8 experts) by XLA": lambda: ours(runtime="xla"),
            "ours (64 experts)": lambda: ours("model.moe.num_experts=64"),
            "Hugging Face NLLB-MoE (8 experts)": lambda: hugging_face(checkpoint),
            "ours (imported NLLB-MoE)": lambda: imported("local"),
            "ours (imported NLLB-MoE) by XLA": lambda: imported("xla"),
        }
        if args.caches:
            starts = {
                name: functools.partial(
                    ours,
                    "model.moe=None",
                    f"decoding.separate_caches_from={least}",
                    runtime=args.caches,
                )
                for name, least in (("shared", 65), ("separate", 1))
            }
        chosen = [name for name in args.only.split(",") if name] or list(starts)
        engines = {name: starts[name]() for name in starts if name in chosen}
        for case in args.cases.split(","):
            batch, beam = map(int, case.split("x"))
            results = race(engines, args.rounds, batch=batch, beam=beam)
            print(table(results, batch, beam, args.steps), flush=True)
            if args.latency:
                print(latencies(results), flush=True)
        print("\n".join(f"{name}: {engine.about['about']}" for name, engine in engines.items()))
        for engine in engines.values():
            engine.close()


def race(engines: Mapping[str, Peer], rounds: int, **case) -> dict[str, list[dict]]:
    """The results of each engine in each round, without the first, which compiles."""
    results: dict[str, list[dict]] = {name: [] for name in engines}
    for round_number in range(rounds + 1):
        for name, engine in engines.items():
            result = engine.run(**case)
            if round_number:
                results[name].append(result)
    return results


def latencies(results: Mapping[str, list[dict]]) -> str:
    """A table in Markdown: wall time and processor time of each engine, in milliseconds.

    The columns are the smallest, median and 99th-percentile wall time, and the median processor
    time. If other processes load the machine, the smallest is closest to that of an idle one.

    Args:
        results: name of an engine -> its results, see `race`.
    """
    rows = []
    for name, rounds in results.items():
        wall = np.quantile([r["seconds"] for r in rounds], [0, 0.5, 0.99])
        milliseconds = 1e3 * np.array([*wall, np.median([r["cpu_seconds"] for r in rounds])])
        rows.append([name, *(f"{ms:.1f}" for ms in milliseconds)])
    columns = ("", "smallest ms", "p50 ms", "p99 ms", "p50 processor ms")
    return "\n" + Table(columns, rows).to_markdown()


def table(results: Mapping[str, list[dict]], batch: int, beam: int, steps: int) -> str:
    """The table of a case in Markdown: speeds in target tokens per second, and ratios of speeds."""
    experts = TWIN in results
    bases = [next(iter(results)), *([TWIN] if experts else [])]
    ratios = [f"speed / {base} ({clock})" for base in bases for clock in ("wall", "processor")]
    columns = ("", "tokens/s", "tokens/s of processor time", *ratios, "same as the first")
    rows = []
    for name, rounds in results.items():
        cells = []
        for clock in ("seconds", "cpu_seconds"):
            cells.append(f"{batch * steps / np.median([r[clock] for r in rounds]):,.0f}")
        for base in bases:
            for clock in ("seconds", "cpu_seconds"):
                cells.append(f"{ratio(results[base], rounds, clock):.2f}")
        same = rounds[-1]["loss"] == results[bases[0]][-1]["loss"]
        rows.append([name, *cells, "yes" if same else "no"])
    return f"\n{batch} sentences, beam {beam}\n\n{Table(columns, rows).to_markdown()}"


if __name__ == "__main__":
    main()
