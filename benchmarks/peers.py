"""Training speed compared with peers: one table of ratios, all timed alternately in one run.

python benchmarks/peers.py [--rounds=11] [--threads=2] [--dropout=0.1] [--only=NAME,…] [--shared]

Each peer is a process of its own (benchmarks/_peers/*.py), controlled by pipes. `make bench`
installs those of other packages into build/peers. Every round times each peer once, so that changes
of the machine's speed affect all of them; a ratio is the median of the rounds' ratios. The batch is
32 x 64 tokens on both sides, without padding; a step is forward, backward and the optimizer's
update, Adafactor. In bfloat16 PyTorch's models run under its autocast.

The share of the peak counts the products that the model needs (two experts per token), relative to
large TensorFlow products timed in the same rounds. On a shared machine use the processor time of
all threads, with --shared, so that PyTorch's threads sleep while they wait.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from _peers._serve import SHAPE

from lingvo_moe.reporting.table import Table

HERE = Path(__file__).parent
_INSTALLED = HERE.parent / "build" / "peers"
PEERS_PYTHON = _INSTALLED / ".venv" / "bin" / "python"
TRANSFORMERS_5 = _INSTALLED / "transformers5"
DROPLESS = ("model.moe.training=Ragged()",)
# Two experts of H in every second layer and one in the others: 1.5 H in each is as many products.
DENSE = ("model.moe=None", "model.hidden_dim=1536")
BFLOAT16 = "activation_dtype=bfloat16"
MATMUL = "matrix products"
_TOKENS = SHAPE["batch_size"] * SHAPE["length"]  # of one side
_CHOICES = 2  # experts per token
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


class Peer:
    """A process that takes training steps on demand."""

    def __init__(
        self,
        python: str | Path,
        script: str,
        threads: int,
        *arguments: str,
        packages: Path | None = None,
    ):
        """Starts it; `about` waits for its first steps. `packages` precedes its own packages."""
        command = [str(python), str(HERE / "_peers" / script), *arguments]
        changes = dict.fromkeys(_THREADS, str(threads))
        if packages:
            changes["PYTHONPATH"] = str(packages)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | changes,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self.about = self._read()

    def run(self, steps: int = 1, **request) -> dict:
        """Runs steps and returns their measurements; request has other arguments of the script."""
        print(json.dumps({"steps": steps, **request}), file=self._requests, flush=True)
        return self._read()

    def close(self) -> None:
        """Ends the process."""
        self._requests.close()
        self._process.wait()

    def _read(self):
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended; its messages are above.")
        return json.loads(line)


def ours(threads: int, *overrides: str) -> Peer:
    """This package's model."""
    return Peer(sys.executable, "ours.py", threads, *overrides)


def race(peers: Mapping[str, Peer], rounds: int, pause: float = 0.2) -> dict[str, list[dict]]:
    """The results of each peer in each round; in the pause spinning threads fall asleep."""
    results: dict[str, list[dict]] = {name: [] for name in peers}
    for round_number in range(rounds):
        for name, peer in peers.items():
            time.sleep(pause)
            results[name].append(peer.run())
        print(f"round {round_number + 1}/{rounds}", end="\r", file=sys.stderr, flush=True)
    return results


def ratio(results: Sequence[dict], base: Sequence[dict], clock: str) -> float:
    """The median over rounds of the ratio of times."""
    pairs = zip(results, base, strict=True)
    return float(np.median([one[clock] / other[clock] for one, other in pairs]))


def step_flops() -> float:
    """FLOPs of the products of a step, forward and twice backward."""
    layers, length, model_dim = (SHAPE[name] for name in ("layers", "length", "model_dim"))
    heads_dim = SHAPE["num_heads"] * SHAPE["head_dim"]
    projections = 4 * model_dim * heads_dim
    scores = 2 * length * heads_dim
    moe_layers = layers // SHAPE["every_n"]
    networks = 2 * model_dim * SHAPE["hidden_dim"] * (layers - moe_layers + _CHOICES * moe_layers)
    side = layers * (projections + scores) + networks
    cross = layers * (projections + scores)
    return 3 * 2 * _TOKENS * (2 * side + cross + model_dim * SHAPE["vocab_size"])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2, help="of each peer")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--only", default="", help="names of peers, separated by commas")
    parser.add_argument("--shared", action="store_true", help="the machine has other users")
    args = parser.parse_args()
    threads, dropout = args.threads, str(args.dropout)
    rate = f"model.dropout_rate={dropout}"
    if args.shared:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

    def torch_peer(script, *dtype, packages=None):
        return Peer(PEERS_PYTHON, script, threads, dropout, *dtype, packages=packages)

    starts = {
        "ours (capacity 2.0)": lambda: ours(threads, rate),
        "ours (dropless)": lambda: ours(threads, rate, *DROPLESS),
        "ours (dense twin)": lambda: ours(threads, rate, *DENSE),
        "plain PyTorch": lambda: torch_peer("plain_torch.py"),
        "Hugging Face": lambda: torch_peer("hugging_face.py"),
        "Hugging Face 5": lambda: torch_peer("hugging_face.py", packages=TRANSFORMERS_5),
        "ours (bfloat16)": lambda: ours(threads, rate, BFLOAT16),
        "ours (dropless bfloat16)": lambda: ours(threads, rate, *DROPLESS, BFLOAT16),
        "plain PyTorch (bfloat16)": lambda: torch_peer("plain_torch.py", "bfloat16"),
        "Hugging Face (bfloat16)": lambda: torch_peer("hugging_face.py", "bfloat16"),
        "Hugging Face 5 (bfloat16)": lambda: torch_peer(
            "hugging_face.py", "bfloat16", packages=TRANSFORMERS_5
        ),
    }
    chosen = [name for name in args.only.split(",") if name] or list(starts)
    peers = {MATMUL: ours(threads, "matmul=True")} | {name: starts[name]() for name in chosen}
    results = race(peers, args.rounds)
    print(table(peers, results))
    for peer in peers.values():
        peer.close()


def table(peers: Mapping[str, Peer], results: Mapping[str, list[dict]]) -> str:
    """The table in Markdown; the others are compared with the first model."""
    base = next(name for name in peers if name != MATMUL)
    columns = ["model", "weights", "ms per step", "target tokens/s", f"time / {base}"]
    columns += ["share of peak", "processor time / first", "share of peak", "memory, MB"]
    rows = []
    for name, rounds in results.items():
        if name == MATMUL:
            continue
        cells = [name, f"{peers[name].about['weights'] / 1e6:.1f}M"]
        seconds = np.median([r["seconds"] for r in rounds])
        cells += [f"{1e3 * seconds:.0f}", f"{_TOKENS / seconds:,.0f}"]
        for clock in ("seconds", "cpu_seconds"):
            # The share of a round is relative to the products of that round.
            products = ratio(results[MATMUL], rounds, clock) / peers[MATMUL].about["flops"]
            cells.append(f"{ratio(rounds, results[base], clock):.2f}")
            cells.append(f"{step_flops() * products:.0%}")
        cells.append(f"{rounds[-1]['peak_bytes'] / 2**20:.0f}")
        rows.append(cells)
    lines = [Table(columns, rows).to_markdown()]
    flops = peers[MATMUL].about["flops"]
    for clock in ("seconds", "cpu_seconds"):
        rate = flops / np.median([r[clock] for r in results[MATMUL]])
        lines.append(f"{peers[MATMUL].about['about']}: {1e-9 * rate:.0f} GFLOP/s ({clock})")
    lines += [f"{name}: {peer.about['about']}" for name, peer in peers.items() if name != MATMUL]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
