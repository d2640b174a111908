"""Processor time of a training step with each optimizer, relative to Adafactor.

python benchmarks/optimizers.py [--models=tiny.MoE,small.MoE] [--repeats=12]

All optimizers run in turn. The ratio is the median over the repeats.
"""

import argparse
import time

import numpy as np
from training_step import seconds_in_turn, start

import lingvo_moe.tools  # noqa: F401  (TensorFlow logs less when it starts)
from lingvo_moe.reporting.table import Table

_SCHEDULE = "schedule=Cosine(learning_rate=0.01,total_steps=1000000)"
OPTIMIZERS = {
    "Adafactor": f"Adafactor({_SCHEDULE})",
    "Adafactor, EMA": f"Adafactor({_SCHEDULE},ema_decay=0.99)",
    "Muon, 3 iterations": f"Muon({_SCHEDULE},iterations=3)",
    "Muon, 5 iterations": f"Muon({_SCHEDULE})",
    "AdamW": f"AdamW({_SCHEDULE})",
    "Lion": f"Lion({_SCHEDULE})",
}


def main() -> None:
    """Prints a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="tiny.MoE,small.MoE")
    parser.add_argument("--repeats", type=int, default=12)
    flags = parser.parse_args()
    for model in flags.models.split(","):
        times = seconds_in_turn(
            {name: _step(model, text) for name, text in OPTIMIZERS.items()},
            flags.repeats,
            time.process_time,
        )
        rows = [
            (name, f"{np.median(of):.3f}", f"{np.median(of / times['Adafactor']):.2f}")
            for name, of in times.items()
        ]
        columns = (model, "seconds per step", "relative to Adafactor")
        print(Table(columns, rows).to_markdown(), flush=True)


def _step(model, optimizer):
    """A function that takes one training step."""
    runtime, batch = start(model, [f"optimizer={optimizer}"])
    return lambda: runtime.train(batch).tokens.numpy()


if __name__ == "__main__":
    main()
