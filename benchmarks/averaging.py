"""Dev loss with and without the moving average of weights; optimizers.py has step times.

python benchmarks/averaging.py --data=build/demo/data [--seeds=5] [--steps=600] [--decay=0.99]

For each seed a small model is trained once. Each evaluation measures the dev loss of the moving
average and of the weights; the table has the best of each.
"""

import argparse
from pathlib import Path

import numpy as np

import lingvo_moe.tools  # noqa: F401  (TensorFlow logs less when it starts)
from lingvo_moe.core import registry
from lingvo_moe.core.params import override
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.pipeline import TrainInput, eval_batches
from lingvo_moe.reporting.table import Table
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.training import train_step
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.training.averaging import Ema

SIZES = ("model.num_encoder_layers=2", "model.num_decoder_layers=2", "input.batch_size=16")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--decay", type=float, default=0.99)
    flags = parser.parse_args()
    dataset, rows = Dataset.load(flags.data), []
    for seed in range(1, flags.seeds + 1):
        average, weights = _losses(dataset, flags, seed)
        rows.append(
            (str(seed), f"{average:.4f}", f"{weights:.4f}", "yes" if average <= weights else "no")
        )
        print(*rows[-1], flush=True)
    print(Table(("seed", "average", "weights", "average is best"), rows).to_text())


def _losses(dataset, flags, seed):
    """The best dev loss of the average and of the weights."""
    texts = (*SIZES, f"optimizer.ema_decay={flags.decay}", f"train.seed={seed}")
    params = override(registry.get_params("tiny.MoE"), texts)
    pairs = tuple(pair.name for pair in dataset.pairs)
    task = TranslationTask(params, pairs, dataset.target_vocabulary.size)
    runtime, plain = Local(task, train_step(task)), Local(task)
    runtime.initialize(seed)
    batches = list(eval_batches(dataset, "dev", params.input))
    source, best = TrainInput(dataset, params.input, seed), np.full(2, np.inf)
    for step in range(1, flags.steps + 1):
        runtime.train(source.next_batch())
        if step % flags.every == 0:
            state, losses = runtime.state(), []
            for tensors in (Ema()([state]), state):
                plain.restore(tensors)
                sums = [plain.evaluate(batch) for batch in batches]
                losses.append(sum(float(m.nll) for m in sums) / sum(float(m.tokens) for m in sums))
            best = np.minimum(best, losses)
    return best


if __name__ == "__main__":
    main()
