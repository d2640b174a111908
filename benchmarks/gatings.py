"""All gatings on the synthetic corpus after equal steps: quality, drop rate, balance, speed.

python benchmarks/gatings.py --data=build/demo/data [--steps=500] [--rounds=15]

Trains tiny.MoE once with each policy: same seed, same batches, same number of steps. Prints the
table of docs/gating.md; speed is target tokens a second relative to the first policy, medians of
alternating steps. Takes about a minute and a half a policy on two cores.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sacrebleu
from training_step import seconds_in_turn

import lingvo_moe.tools  # noqa: F401  (silences TensorFlow's greeting)
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.pipeline import TrainInput, eval_batches
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.evaluation import translate_split
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.training import train_step
from lingvo_moe.tasks.translator import Translator

_LAST = 100  # steps that drop rate and balance are averaged over


def _gating(text: str, capacity_factor: float, *more: str) -> list[str]:
    return [f"model.moe.gating={text}", f"model.moe.capacity_factor={capacity_factor}", *more]


POLICIES = {
    "Top2(second_expert='random')": _gating("Top2(second_expert='random')", 2.0),
    "Top2(second_expert='always')": _gating("Top2(second_expert='always')", 2.0),
    "Top2(second_expert='sampled')": _gating("Top2(second_expert='sampled')", 2.0),
    "Top2(second_expert='never')": _gating("Top2(second_expert='never')", 2.0),
    "TopK(k=3)": _gating("TopK(k=3)", 3.0),
    "TopK(k=2, balance=ByBatch())": _gating("TopK(k=2,balance=ByBatch())", 2.0),
    "TopK(k=2, Sigmoid(), LossFree())": _gating(
        "TopK(k=2,scores=Sigmoid(),bias=LossFree())", 2.0, "model.moe.aux_loss_weight=0.0"
    ),
    "Switch()": _gating("Switch()", 1.25),
    "ExpertChoice()": _gating("ExpertChoice()", 2.0, "model.moe.eval_capacity_factor=2.0"),
    "Hash()": _gating("Hash()", 2.0),
    "Balanced()": _gating("Balanced()", 1.25),
    "Top2() by source language": _gating(
        "Top2()", 2.0, "model.moe.router=ByTask(task='source',num_tasks=12)"
    ),
    "none: the dense twin": ["model.moe=None"],
}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("build/demo/data"))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    dataset = Dataset.load(args.data)
    rows, steps = {}, {}
    with tempfile.TemporaryDirectory() as directory:
        for i, (name, overrides) in enumerate(POLICIES.items()):
            start = time.monotonic()
            model_dir = ModelDir.create(Path(directory) / str(i), "tiny.MoE", overrides, dataset)
            runtime = Local(model_dir.task, train_step(model_dir.task))
            rows[name] = train_and_score(model_dir, dataset, runtime, args.steps)
            batch = TrainInput(dataset, model_dir.params.input, 0).next_batch()
            steps[name] = lambda r=runtime, b=batch: r.train(b).tokens.numpy()
            print(f"{name}: {rows[name]}, {time.monotonic() - start:.0f} s", flush=True)
    seconds = seconds_in_turn(steps, args.rounds)
    base = next(iter(seconds.values()))
    print(
        "\n| policy | capacity factor | BLEU | dev loss | drop rate | busiest expert | step time |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, (bleu, loss, dropped, busiest) in rows.items():
        print(
            f"| `{name}` | {_capacity_factor(POLICIES[name])} | {_number(bleu, '.1f')} | "
            f"{loss:.3f} | {_number(dropped, '.1%')} | {_number(busiest, '.2f')} | "
            f"{np.median(base / seconds[name]):.2f} |"
        )


class Score(NamedTuple):
    """The results of a policy.

    Attributes:
        bleu: mean of the pairs' test BLEU; None if it cannot decode, or was not measured.
        dev_loss: nats a token.
        drop_rate: share of dropped choices at the end; None for a dense model.
        busiest: the busiest expert's share of the load times E at the end, mean of layers; None for
        a dense model.
    """

    bleu: float | None
    dev_loss: float
    drop_rate: float | None
    busiest: float | None


def train_and_score(
    model_dir: ModelDir, dataset: Dataset, runtime: Local, steps: int, bleu: bool = True
) -> Score:
    """Trains from scratch for a number of steps, and evaluates."""
    params = model_dir.params
    runtime.initialize(params.train.seed)
    source, metrics = TrainInput(dataset, params.input, params.train.seed), []
    for step in range(steps):
        metrics.append(runtime.train(source.next_batch()))
        del metrics[:-_LAST]
        if (step + 1) % _LAST == 0:
            print(f"  step {step + 1}", end="\r", flush=True)
    dev = _sum([runtime.evaluate(batch) for batch in eval_batches(dataset, "dev", params.input)])
    return Score(
        _bleu(model_dir, dataset, runtime) if bleu else None,
        dev.nll / dev.tokens,
        *_routing(_sum(metrics)),
    )


def _routing(metrics: NestedMap):
    if "load" not in metrics:
        return None, None
    dropped = metrics.pair_dropped.sum() / metrics.pair_wanted.sum()
    load = metrics.load / metrics.tokens  # [layers, E]
    return dropped, (load.max(axis=1) * load.shape[1]).mean()


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


def _capacity_factor(overrides: list[str]) -> str:
    prefix = "model.moe.capacity_factor="
    return next((t.removeprefix(prefix) for t in overrides if t.startswith(prefix)), "")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


if __name__ == "__main__":
    main()
