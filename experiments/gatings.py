"""Compares all gatings on one corpus, over several seeds: quality, balance, drops, speed.

python -m experiments.gatings --data=build/demo/data --output=build/gatings [--steps=300]
    [--seeds=1,2,3] [--only=TEXT …] [--rounds=15] [--no-bleu] [--results=experiments/results]

Trains tiny.MoE for the same number of steps with each policy and seed; a seed gives every policy
the same batches. Each run is one JSON file in OUTPUT; the same command again makes only the missing
ones. Then it measures the CPU time of steps in alternating order, and prints the table. With
--results=DIR it also writes DIR/gatings_NAME.csv, where NAME is the name of OUTPUT. A run takes 65
seconds on one core.
"""

import argparse
import json
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sacrebleu

import lingvo_moe.tools  # noqa: F401  (TensorFlow logs less when it starts)
from experiments.tables import write_csv
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.pipeline import TrainInput, eval_batches
from lingvo_moe.inference.translator import Translator
from lingvo_moe.jobs.evaluation import translate_split
from lingvo_moe.jobs.training import train_step
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.reporting.table import Table
from lingvo_moe.runtimes.local import Local
from lingvo_moe.system.files import write_whole
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.routing_metrics import max_vio
from lingvo_moe.tasks.translation import TranslationTask

_LAST = 100  # steps that drop rate and balance are averaged over
_GROUPS = "model.moe.training.groups=4"  # the groups of four devices
_WEIGHTS = (0.001, 0.0, 0.01, 0.1)
_NO_LOSS = "model.moe.gating.balance.weight=0.0"


class Policy(NamedTuple):
    """A row: the overrides of a registered model."""

    overrides: Sequence[str] = ()
    model: str = "tiny.MoE"


def _gating(text: str, capacity_factor: float, *more: str) -> Policy:
    factor = f"model.moe.training.capacity_factor={capacity_factor}"
    return Policy([_GROUPS, f"model.moe.gating={text}", factor, *more])


def _top_2(fields: str, *more: str) -> Policy:
    return _gating(f"TopK(k=2{fields})", 2.0, *more)


def _megablocks(training: str, balance: float = 0.001) -> Policy:
    moe = ["num_experts=16", "expert.hidden_dim=256", "every_n=1", f"training={training}"]
    moe += ["gating=Switch()", f"gating.balance.weight={balance}"]
    return Policy([f"model.moe.{text}" for text in moe])


POLICIES = {
    "`TopK(k=2)`": _top_2(""),
    "`TopK(k=2, scores=Sigmoid())`": _top_2(",scores=Sigmoid()"),
    "the same, `bias=LossFree()`, no balance loss": _top_2(
        ",scores=Sigmoid(),bias=LossFree()", _NO_LOSS
    ),
    "the same, `bias=LossFree(rate=0.01)`, no balance loss": _top_2(
        ",scores=Sigmoid(),bias=LossFree(rate=0.01)", _NO_LOSS
    ),
    "`TopK(k=2)` without balance": _top_2("", _NO_LOSS),
    "`LossFree()` and `BySequence()` of weight 0.0001": _top_2(
        ",scores=Sigmoid(),bias=LossFree(),balance=BySequence()",
        "model.moe.gating.balance.weight=0.0001",
    ),
    "`TopK(k=2, limit=NodeLimited(nodes=2, kept=1))`": _top_2(",limit=NodeLimited(nodes=2,kept=1)"),
    "`Switch()` of 7 experts, and one always on": _gating(
        "Switch()", 1.25, "model.moe.num_experts=7", "model.moe.shared=AlwaysOn(experts=1)"
    ),
    "`finegrained.Tiny`: 8 of 32": Policy([_GROUPS], "finegrained.Tiny"),
    "`finegrained.TinyToday`: 6 of 30, two always on, DeepSeek-V3's router": Policy(
        [_GROUPS], "finegrained.TinyToday"
    ),
    "`Top2()`": _gating("Top2()", 2.0),
    "`Top2(second_expert='sampled')`": _gating("Top2(second_expert='sampled')", 2.0),
    "`Top2(second_expert='never')`": _gating("Top2(second_expert='never')", 2.0),
    "`TopK(k=3)`": _gating("TopK(k=3)", 3.0),
    "`Switch()`": _gating("Switch()", 1.25),
    "`ExpertChoice()`": _gating("ExpertChoice()", 2.0),
    "`Balanced()`": _gating("Balanced()", 1.25),
    "`Top2()` by source language": _gating("Top2()", 2.0, "model.moe.router=ByTask(task='source')"),
    "no experts: the dense twin": Policy(["model.moe=None"]),
    # The layout of MegaBlocks: capacities, weights of the balance loss, and no experts.
    **{f"MegaBlocks, {c}": _megablocks(f"Gather(capacity_factor={c})") for c in (1.0, 1.5, 2.0)},
    **{f"MegaBlocks, dropless, balance {w}": _megablocks("Ragged()", w) for w in _WEIGHTS},
    "MegaBlocks, no experts": Policy(["model.moe=None", "model.hidden_dim=256"]),
}


def main() -> None:
    """Trains what is missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("build/demo/data"), help="prepared data")
    parser.add_argument("--output", type=Path, default=Path("build/gatings"), help="of the runs")
    parser.add_argument("--steps", type=int, default=300, help="number of steps of each run")
    parser.add_argument("--seeds", default="1,2,3", help="seeds of weights and batches")
    parser.add_argument("--only", action="append", help="train only rows whose name has this text")
    parser.add_argument("--set", action="append", default=[], help="PATH=VALUE for all rows")
    parser.add_argument(
        "--rounds", type=int, default=15, help="rounds of measuring the speed; 0 for none"
    )
    parser.add_argument(
        "--bleu",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="translate the test text; --no-bleu for runs that are too short for it",
    )
    parser.add_argument("--results", type=Path, help="directory for the table as a CSV file")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    dataset = Dataset.load(args.data)
    names = [n for n in POLICIES if not args.only or any(text in n for text in args.only)]
    for name in names:
        _run(name, dataset, args)
    if args.rounds:
        _measure_speed(dataset, args)
    table = _table(args.output)
    print(table.to_markdown())
    if args.results:
        write_csv(args.results / f"gatings_{args.output.name}.csv", table)


def _run(name, dataset, args):
    """Trains and scores one row for each seed that has no file."""
    policy = POLICIES[name]
    overrides = [*policy.overrides, *_setting(args)]
    said = {"name": name, "steps": args.steps, "overrides": overrides}
    paths = {
        int(seed): args.output / f"{_slug(name)}.{seed}.json" for seed in args.seeds.split(",")
    }
    missing = {
        seed: path
        for seed, path in paths.items()
        if not (path.exists() and json.loads(path.read_text()).items() >= said.items())
    }
    if not missing:
        return
    with tempfile.TemporaryDirectory() as directory:
        model_dir = ModelDir.create(Path(directory), policy.model, overrides, dataset)
        runtime = Local(model_dir.task, train_step(model_dir.task))
        for seed, path in missing.items():
            start = time.monotonic()
            score = train_and_score(
                model_dir, dataset, runtime, args.steps, bleu=args.bleu, seed=seed
            )
            write_whole(path, json.dumps(said | {"seed": seed} | score._asdict(), indent=1))
            seconds = time.monotonic() - start
            print(f"{name}, seed {seed}: {score}, {seconds:.0f} s", flush=True)


def _setting(args):
    """The overrides of all rows: a learning rate that falls to 0 in these steps."""
    schedule = f"Cosine(learning_rate=0.03,total_steps={args.steps},warmup_steps=50)"
    return [f"optimizer.schedule={schedule}", f"train.max_steps={args.steps}", *args.set]


def _slug(name):
    return re.sub(r"\W+", "_", name).strip("_")


def _measure_speed(dataset, args):
    """Writes speed.json: a step's CPU time over that of the first row, the median of rounds."""
    path = args.output / "speed.json"
    here = [name for name in POLICIES if list(args.output.glob(f"{_slug(name)}.*.json"))]
    if path.exists() and json.loads(path.read_text()).keys() >= set(here):
        return
    steps = {}
    with tempfile.TemporaryDirectory() as directory:
        for name in here:
            policy = POLICIES[name]
            overrides = [*policy.overrides, *_setting(args)]
            model_dir = ModelDir.create(
                Path(directory) / _slug(name), policy.model, overrides, dataset
            )
            runtime = Local(model_dir.task, train_step(model_dir.task))
            runtime.initialize(0)
            batch = TrainInput(dataset, model_dir.params.input, 0).next_batch()
            steps[name] = lambda r=runtime, b=batch: r.train(b).tokens.numpy()
    seconds = np.array(
        [[_seconds(step) for step in steps.values()] for _ in range(args.rounds + 2)]
    )
    ratios = np.median(seconds[2:] / seconds[2:, :1], axis=0)  # the first rounds compile
    speed = dict(zip(steps, map(float, ratios), strict=True))
    write_whole(path, json.dumps(speed, indent=1))


def _seconds(step):
    start = time.process_time()
    step()
    return time.process_time() - start


def _table(output: Path) -> Table:
    """The table of all runs: means over seeds; ± is the standard error."""
    speed_path, rows = output / "speed.json", []
    speed = json.loads(speed_path.read_text()) if speed_path.exists() else {}
    runs = {
        name: {
            run["seed"]: run
            for run in (json.loads(p.read_text()) for p in output.glob(f"{_slug(name)}.*.json"))
        }
        for name in POLICIES
    }
    base = next(iter(runs.values()))
    for name, of_seed in runs.items():
        if not of_seed:
            continue

        def mean(key, form, of_seed=of_seed):
            values = [run[key] for run in of_seed.values() if run[key] is not None]
            return format(np.mean(values), form) if values else ""

        paired = [run["dev_loss"] - base[s]["dev_loss"] for s, run in of_seed.items() if s in base]
        known = paired and of_seed is not base
        difference = f"{np.mean(paired):+.3f}{_plus_minus(paired)}" if known else ""
        rows.append(
            (
                name,
                str(len(of_seed)),
                mean("dev_loss", ".3f"),
                difference,
                mean("bleu", ".1f"),
                mean("max_vio", ".2f"),
                mean("max_vio_of_last", ".2f"),
                mean("drop_rate", ".1%"),
                format(speed[name], ".2f") if name in speed else "",
                " ".join(f"{x:.3f}" for x in np.mean([r["curve"] for r in of_seed.values()], 0)),
            )
        )
    columns = (
        *("policy", "seeds", "dev loss", "difference to the first row", "BLEU", "MaxVio per step"),
        *("MaxVio, 100 steps", "drop rate", "time per step", "training loss by 100 steps"),
    )
    return Table(columns, rows)


def _plus_minus(values):
    """The standard error of the mean; one value has none."""
    return f" ± {np.std(values, ddof=1) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""


class Score(NamedTuple):
    """The results of a run. Balance and drops are of the last _LAST steps, None for a dense model.

    Attributes:
        bleu: mean of the pairs' test BLEU; None if it cannot decode, or was not measured.
        dev_loss: nats per token.
        drop_rate: share of dropped choices.
        max_vio: MaxVio of a step, the mean over steps and layers.
        max_vio_of_last: MaxVio of the choices of all these steps together, the mean of layers.
        curve: nats per token of training, of each _LAST steps.
    """

    bleu: float | None
    dev_loss: float
    drop_rate: float | None
    max_vio: float | None
    max_vio_of_last: float | None
    curve: list[float]


def train_and_score(
    model_dir: ModelDir,
    dataset: Dataset,
    runtime: Local,
    steps: int,
    bleu: bool = True,
    seed: int | None = None,
) -> Score:
    """Trains from scratch for a number of steps, and evaluates.

    Args:
        seed: seed of the initial weights and of the batches; None for train.seed.
    """
    params = model_dir.params
    seed = params.train.seed if seed is None else seed
    runtime.initialize(seed)
    source, metrics, curve = TrainInput(dataset, params.input, seed), [], []
    for step in range(steps):
        metrics.append(runtime.train(source.next_batch()))
        del metrics[:-_LAST]
        if (step + 1) % _LAST == 0:
            curve.append(float(_sum(metrics).nll / _sum(metrics).tokens))
            print(f"  step {step + 1}", end="\r", flush=True)
    dev = _sum([runtime.evaluate(batch) for batch in eval_batches(dataset, "dev", params.input)])
    return Score(
        _bleu(model_dir, dataset, runtime) if bleu else None,
        float(dev.nll / dev.tokens),
        *_routing(model_dir.task, _sum(metrics), len(metrics)),
        curve,
    )


def _routing(task: TranslationTask, metrics: NestedMap, steps: int) -> tuple[Any, Any, Any]:
    if not task.moe_layers:
        return None, None, None
    dropped = metrics.pair_dropped.sum() / metrics.pair_wanted.sum()
    together = max_vio(np.float32(metrics.choices), task.layer_experts)
    return float(dropped), float(metrics.max_vio.mean() / steps), float(np.mean(together))


def _bleu(model_dir: ModelDir, dataset: Dataset, runtime: Local) -> float | None:
    moe = model_dir.params.model.moe
    if moe is not None and not moe.gating.batch_independent:
        return None
    translator = Translator.of(model_dir, runtime.translate)
    pairs = [(pair, translator) for pair in model_dir.pairs]
    outputs = translate_split(pairs, dataset, "test", report=lambda line: None)
    scores = [sacrebleu.corpus_bleu(o.hypotheses, [o.references]).score for o in outputs]
    return float(np.mean(scores))


def _sum(metrics: list[NestedMap]) -> NestedMap:
    return metrics[0].map(lambda *xs: sum(np.asarray(x, np.float64) for x in xs), *metrics[1:])


if __name__ == "__main__":
    main()
