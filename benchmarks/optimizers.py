"""Processor time of a training step with each optimizer, relative to Adafactor.

python benchmarks/optimizers.py [--models=tiny.MoE,small.MoE] [--repeats=12]

All optimizers run in turn. The ratio is the median over the repeats.
"""

import argparse
import time

import numpy as np
from training_step import full_batch, seconds_in_turn

import lingvo_moe.tools  # noqa: F401  (TensorFlow logs less when it starts)
from lingvo_moe.core import registry
from lingvo_moe.core.params import override
from lingvo_moe.reporting.table import Table
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.training import train_step
from lingvo_moe.tasks.translation import TranslationTask

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
    params = override(registry.get_params(model), [f"optimizer={optimizer}"])
    task = TranslationTask(params)
    runtime, batch = Local(task, train_step(task)), full_batch(params)
    runtime.initialize(0)
    return lambda: runtime.train(batch).tokens.numpy()


if __name__ == "__main__":
    main()
