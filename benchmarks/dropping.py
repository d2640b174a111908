"""The effect of dropped tokens: dev loss after equal steps with different capacities and seeds.

python benchmarks/dropping.py --data=build/demo/data [--steps=500] [--seeds=3,4,5] [--top2]
    [--set=model.moe.aux_loss_weight=0.01]

Trains tiny.MoE in the layout of MegaBlocks: 16 experts of half the size in every layer, top-1, a
learning rate that falls to 0, and a tenth of the weight of the balance loss. With --top2 it trains
tiny.MoE with both experts always. Evaluation drops no token. Prints the tables of docs/dropless.md.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from gatings import train_and_score

import lingvo_moe.tools  # noqa: F401  (TensorFlow logs less when it starts)
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.reporting.table import Table
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.training import train_step

TOP_1 = (
    "model.moe.gating=Switch()",
    "model.moe.num_experts=16",
    "model.moe.hidden_dim=256",
    "model.moe.every_n=1",
    "model.moe.aux_loss_weight=0.001",
    "optimizer.schedule=Cosine(learning_rate=0.03,total_steps={steps},warmup_steps=50)",
)
TOP_2 = ("model.moe.gating=Top2(second_expert='always')",)
ROOM = {
    "dropless": ["model.moe.capacity_factor=None", "model.moe.dispatcher=Ragged()"],
    "capacity factor 2.0": ["model.moe.capacity_factor=2.0"],
    "capacity factor 1.0": ["model.moe.capacity_factor=1.0"],
}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("build/demo/data"))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", default="3,4,5")
    parser.add_argument("--top2", action="store_true", help="tiny.MoE with top-2")
    parser.add_argument("--set", action="append", default=[], help="PATH=VALUE, over the above")
    args = parser.parse_args()
    setting = [text.format(steps=args.steps) for text in (TOP_2 if args.top2 else TOP_1)]
    setting += [f"train.max_steps={args.steps}", *args.set]
    dataset, seeds = Dataset.load(args.data), args.seeds.split(",")
    losses: dict[str, list[float]] = {name: [] for name in ROOM}
    drops: dict[str, list[Any]] = {name: [] for name in ROOM}
    with tempfile.TemporaryDirectory() as directory:
        for seed in seeds:
            for i, (name, overrides) in enumerate(ROOM.items()):
                overrides = [*setting, *overrides, f"train.seed={seed}"]
                logdir = Path(directory) / f"{seed}_{i}"
                model_dir = ModelDir.create(logdir, "tiny.MoE", overrides, dataset)
                runtime = Local(model_dir.task, train_step(model_dir.task))
                score = train_and_score(model_dir, dataset, runtime, args.steps, bleu=False)
                losses[name].append(score.dev_loss)
                drops[name].append(score.drop_rate)
                print(f"seed {seed}, {name}: {score}", flush=True)
    columns = (
        "capacity",
        f"dev loss, seeds {', '.join(seeds)}",
        "mean",
        "choices dropped at the end",
    )
    rows = []
    for name, values in losses.items():
        each = ", ".join(f"{value:.3f}" for value in values)
        rows.append((name, each, f"{np.mean(values):.3f}", f"{np.mean(drops[name]):.1%}"))
    print(f"\n{Table(columns, rows).to_markdown()}")


if __name__ == "__main__":
    main()
