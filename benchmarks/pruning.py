"""Test BLEU after pruning with the statistics of each pair, of its languages, and of all pairs.

lingvo-moe-train --model=tiny.MoE --data=build/demo/data --logdir=build/moe32 \
    --set=model.moe.num_experts=32
python benchmarks/pruning.py --logdir=build/moe32 --data=build/demo/data [--share=0.75]

Nothing is trained. Each pair has its own pruned model, except with the statistics of all pairs.
Layers keep equal shares, three times as many in the encoder, or as many as one threshold gives.
Prints the tables of docs/serving.md, "For some languages only".
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import lingvo_moe.tools  # noqa: F401  (TensorFlow logs less when it starts)
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.evaluation.scores import score_pair
from lingvo_moe.reporting.table import Table
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving.formats.base import read_model
from lingvo_moe.serving.prune import STATISTICS, PerLayer, Pruning, Threshold
from lingvo_moe.serving.report import comparable_pairs
from lingvo_moe.tasks.evaluation import translate_pair
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.translator import Translator

CHOICES = {"1 : 1": PerLayer(ratio=1.0), "3 : 1": PerLayer(ratio=3.0), "threshold": Threshold()}
GLOBAL = "all"  # the name of the statistics to compare with


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logdir", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path("build/demo/data"))
    parser.add_argument("--share", type=float, default=0.75, help="of the experts to remove")
    args = parser.parse_args()
    dataset, model_dir = Dataset.load(args.data), ModelDir.open(args.logdir)
    pairs = comparable_pairs(model_dir, dataset, "test")
    columns = {"whole": _bleu(dataset, model_dir, dict.fromkeys(pairs))}
    differences = []
    for setting, choice in CHOICES.items():
        for name, statistics in STATISTICS.items():
            prunings = {}
            for pair in pairs:
                languages = () if name == GLOBAL else (pair,)
                prunings[pair] = Pruning(
                    share=args.share, languages=languages, statistics=statistics, choice=choice
                )
            columns[f"{setting}, {name}"] = _bleu(dataset, model_dir, prunings)
        for name in STATISTICS:
            if name != GLOBAL:
                ours, theirs = columns[f"{setting}, {name}"], columns[f"{setting}, {GLOBAL}"]
                differences.append((setting, name, *_difference(ours, theirs)))
    rows = [
        (pair, *(f"{bleu:.1f}" for bleu in row))
        for pair, *row in zip(pairs, *columns.values(), strict=True)
    ]
    mean = ("mean", *(f"{np.mean(column):.1f}" for column in columns.values()))
    print(Table(("pair", *columns), rows, [mean]).to_markdown())
    head = ("choice", "statistics", "better", "worse", "mean difference")
    print(f"\nAgainst the statistics of all pairs:\n{Table(head, differences).to_markdown()}")


def _bleu(dataset, model_dir, prunings):
    """BLEU of each pair, float [pairs]; models of equal shapes share one compiled search."""
    runtimes: dict[tuple, Local] = {}
    loaded, scores = None, []
    for pair, pruning in prunings.items():
        if loaded is None or pruning != loaded[0]:
            pruned, theta, _ = read_model(model_dir, None, pruning)
            moe: Any = pruned.params.model.moe
            sizes = moe.num_experts, moe.decoder_num_experts
            runtime = runtimes.setdefault(sizes, Local(pruned.task))
            runtime.restore({"step": np.int64(0)} | {f"theta/{n}": w for n, w in theta.flatten()})
            loaded = pruning, Translator.of(pruned, runtime.translate)
        scores.append(score_pair(translate_pair(loaded[1], dataset, "test", pair, print)).bleu)
    return np.array(scores)


def _difference(ours, theirs):
    change = ours - theirs
    error = np.std(change, ddof=1) / np.sqrt(len(change))
    better, worse = (f"{sum(sign * change > 0)} of {len(change)}" for sign in (1, -1))
    return better, worse, f"{np.mean(change):+.1f} ± {error:.1f}"


if __name__ == "__main__":
    main()
