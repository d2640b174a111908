"""The balance loss of the whole batch, in steps with micro-batches."""

import numpy as np
import pytest

from lingvo_moe.core.params import override
from lingvo_moe.core.registry import get_params
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.training import train_step
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.logdirs import SMALLEST

ROWS, LENGTH = 8, 6


def after_step(micro_batches, *overrides):
    """The state after a step in which the balance loss is most of the gradient, and its metrics."""
    params = override(
        get_params("tiny.MoE"),
        [
            *SMALLEST,
            "model.moe.gating=TopK(k=2,scores=Sigmoid(),bias=LossFree(),balance=ByBatch())",
            "model.moe.aux_loss_weight=10.0",
            "model.moe.dispatcher=Ragged()",
            "model.moe.capacity_factor=None",
            "model.moe.decoder_num_experts=3",
            "model.dropout_rate=0.0",
            f"input.batch_size={ROWS}",
            f"input.source_length={LENGTH}",
            f"input.target_length={LENGTH}",
            f"train.micro_batches={micro_batches}",
            *overrides,
        ],
    )
    task = TranslationTask(params, ("a-b",))
    runtime = Local(task, train_step(task))
    runtime.initialize(3)
    metrics = runtime.train(batch())
    return {name: np.array(value) for name, value in runtime.state().items()}, metrics


def batch():
    """Full rows, so that all micro-batches have the same number of tokens."""
    rng = np.random.default_rng(5)
    names = ("source_ids", "target_ids", "target_inputs")
    made = {name: rng.integers(4, 60, (ROWS, LENGTH)) for name in names}
    for side in ("source", "target"):
        made |= {f"{side}_segment_ids": np.ones((ROWS, LENGTH))}
        made |= {f"{side}_pair_ids": np.zeros((ROWS, LENGTH))}
    return {name: value.astype(np.int32) for name, value in made.items()}


SCAN = ("model.scan=True", "model.moe.dispatcher=Gather()", "model.moe.capacity_factor=9.0")


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), SCAN], ids=["layers", "scan"])
def test_micro_batches_take_the_step_of_the_whole_batch(overrides):
    (whole, expected), (parts, metrics) = (after_step(n, *overrides) for n in (1, 4))
    assert metrics.grad_norm.numpy() == pytest.approx(expected.grad_norm.numpy(), rel=1e-5)
    assert metrics.aux_loss.numpy() == pytest.approx(expected.aux_loss.numpy(), rel=1e-5)
    for name, value in whole.items():
        np.testing.assert_allclose(parts[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    counts = [value for name, value in parts.items() if name.endswith("first_choices")]
    assert len(counts) == 2
    assert not any(np.any(value) for value in counts)  # 0 between steps
