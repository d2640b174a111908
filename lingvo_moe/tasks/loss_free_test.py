"""Loss-free balancing in a whole model: the bias is state that the step changes."""

import numpy as np
import pytest

from lingvo_moe.config.params import evolve, override
from lingvo_moe.config.registry import get_params
from lingvo_moe.jobs.training import train_step
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.logdirs import SMALLEST
from lingvo_moe.testing.padded import Padded

ROWS, LENGTH, RATE = 8, 6, 0.01
DROPLESS = "model.moe.training=Ragged()"
LAYERS = ("encoder/layer_00", "decoder/layer_00")


def make(*overrides, training=None):
    gating = f"TopK(k=2,scores=Sigmoid(),bias=LossFree(rate={RATE}),balance=BySequence())"
    params = override(
        get_params("tiny.MoE"),
        [
            *SMALLEST,
            f"model.moe.gating={gating}",
            "model.dropout_rate=0.0",
            "model.moe.decoder_num_experts=3",
            f"input.batch_size={ROWS}",
            f"input.source_length={LENGTH}",
            f"input.target_length={LENGTH}",
            *overrides,
        ],
    )
    params = evolve(params, "model.moe.training", training) if training else params
    task = TranslationTask(params, ("a-b",))
    runtime = Local(task, train_step(task))
    runtime.initialize(3)
    return runtime


def batch(seed=5):
    rng = np.random.default_rng(seed)
    names = ("source_ids", "target_ids", "target_inputs")
    made = {name: rng.integers(4, 60, (ROWS, LENGTH)) for name in names}
    filled = np.arange(LENGTH) < rng.integers(2, LENGTH + 1, (ROWS, 1))
    for side in ("source", "target"):
        made |= {f"{side}_segment_ids": filled, f"{side}_pair_ids": np.zeros((ROWS, LENGTH))}
    return {name: value.astype(np.int32) for name, value in made.items()}


def read(runtime):
    """The state as arrays."""
    return {name: np.array(value) for name, value in runtime.state().items()}


def biases(runtime):
    return {
        name.split("/feed_forward/")[0].removeprefix("theta/"): np.array(value)
        for name, value in runtime.state().items()
        if name.endswith("gating/bias")
    }


def followed(choices, num_experts):
    load = np.asarray(choices)[:num_experts]
    return np.float32(RATE) * np.sign(load.mean() - load)


@pytest.mark.slow
def test_each_layers_bias_follows_its_load_and_no_optimizer_has_it():
    """The choices of both micro-batches count, as those of the whole batch do."""
    whole, runtime = make(DROPLESS), make(DROPLESS, "train.micro_batches=2")
    expected, metrics = whole.train(batch()), runtime.train(batch())
    np.testing.assert_array_equal(metrics.choices, expected.choices)
    np.testing.assert_array_equal(metrics.max_vio, expected.max_vio)
    real = batch()["source_segment_ids"].sum(), batch()["target_segment_ids"].sum()
    np.testing.assert_array_equal(np.sum(metrics.choices, axis=1), 2 * np.array(real))
    for found in (biases(whole), biases(runtime)):
        assert found.keys() == set(LAYERS)
        for row, (layer, experts) in enumerate(zip(LAYERS, (8, 3), strict=True)):
            np.testing.assert_array_equal(found[layer], followed(metrics.choices[row], experts))
    for row, experts in enumerate((8, 3)):
        load = np.asarray(metrics.choices)[row, :experts]
        assert metrics.max_vio[row].numpy() == pytest.approx(load.max() / load.mean() - 1)
    assert not any("gating" in name for name in runtime.state() if name.startswith("slots/"))


@pytest.mark.slow
def test_it_resumes_to_the_bit_and_translates_with_the_bias():
    runtime = make()
    states = [read(runtime)]
    for seed in range(4):
        runtime.train(batch(seed))
        states.append(read(runtime))
    runtime.initialize(9)
    runtime.restore(states[2])
    for seed in (2, 3):
        runtime.train(batch(seed))
    for name, value in read(runtime).items():
        np.testing.assert_array_equal(value, states[4][name], err_msg=name)
    # Weights alike, biases that leave a single pair of experts to choose: another translation's
    # score, so decoding reads them.
    source, lengths = batch()["source_ids"], np.full(ROWS, LENGTH, np.int32)
    before = runtime.translate(source, lengths).scores.numpy()
    forced = {
        name: np.arange(value.shape[0], dtype=np.float32) if name.endswith("gating/bias") else value
        for name, value in states[4].items()
    }
    runtime.restore(forced)
    assert np.abs(before - runtime.translate(source, lengths).scores.numpy()).max() > 1e-4


@pytest.mark.slow
def test_a_step_that_is_taken_again_moves_the_bias_once():
    """Places for 0.3 of the load at balance are too few, so the step is repeated."""
    runtime = make("model.moe.decoder_num_experts=None", training=Padded(factors=(0.3, 8.0)))
    metrics = runtime.train(batch())
    assert metrics.retries > 0
    for row, layer in enumerate(LAYERS):
        np.testing.assert_array_equal(biases(runtime)[layer], followed(metrics.choices[row], 8))
