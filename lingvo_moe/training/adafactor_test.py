import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.nn.layer import Normal, WeightSpec, init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.training.adafactor import Adafactor
from lingvo_moe.training.schedules import Constant

RATE = 0.05


def spec_of(shape, dims):
    return WeightSpec(shape, Normal(0.1), dims)


def run(optimizer, weights, theta, grads_of_steps, first_step=0):
    """theta and slots after a step for each of the gradients, a list of NestedMaps."""
    slots = init_theta(optimizer.slots(weights), 0)
    update = tf.function(lambda *args: optimizer.update(*args, weights)[:2])
    for i, grads in enumerate(grads_of_steps):
        theta, slots = update(theta, slots, grads, tf.constant(first_step + i, tf.int64))
    return theta, slots


def random_run(optimizer, spec, steps, first_step=0):
    """The start, the gradients [steps, …] and the end of a run on one weight, in numpy."""
    rng = np.random.default_rng(7)
    start = rng.normal(0, 0.1, spec.shape).astype(np.float32)
    # Gradients of very different sizes: by element, by expert and by step.
    sizes = np.exp(rng.normal(0, 2, spec.shape)) * np.exp(
        rng.normal(0, 1, [steps] + [1] * start.ndim)
    )
    grads = (rng.normal(0, 1, [steps, *spec.shape]) * sizes).astype(np.float32)
    theta, _ = run(
        optimizer,
        NestedMap(w=spec),
        NestedMap(w=tf.constant(start)),
        [NestedMap(w=tf.constant(g)) for g in grads],
        first_step,
    )
    return start, grads, theta.w.numpy()


def slow_adafactor(weight, grads, *, factor, first_step=0, beta1=0.0, beta2_cap=0.99, decay=0.0):
    """Adafactor on one matrix, vector or scalar, in float64, one row after the other."""
    weight = np.array(weight, np.float64)
    rows, columns = np.zeros(weight.shape[:1]), np.zeros(weight.shape[-1:])
    full, momentum = np.zeros(weight.shape), np.zeros(weight.shape)
    for step, grad in enumerate(np.array(grads, np.float64), start=first_step + 1):
        beta2 = min(1 - step**-0.8, beta2_cap)
        squared = grad * grad + 1e-30
        if factor:
            for i in range(len(rows)):
                rows[i] = beta2 * rows[i] + (1 - beta2) * np.mean(squared[i, :])
            for j in range(len(columns)):
                columns[j] = beta2 * columns[j] + (1 - beta2) * np.mean(squared[:, j])
            for i in range(len(rows)):
                full[i, :] = rows[i] * columns / np.mean(rows)
        else:
            full = beta2 * full + (1 - beta2) * squared
        update = grad / np.sqrt(full)
        update = update / max(1.0, np.sqrt(np.mean(update**2)))
        change = RATE * max(np.sqrt(np.mean(weight**2)), 1e-3) * update
        momentum = beta1 * momentum + (1 - beta1) * change
        weight = weight - momentum - RATE * decay * weight
    return weight


def assert_same_path(end, expected, start):
    """Equal within 1e-4 of the change of the weight (root mean square)."""
    went = np.sqrt(np.mean((expected - start) ** 2))
    np.testing.assert_allclose(end, expected, rtol=0, atol=1e-4 * went)


@pytest.mark.parametrize(
    ("shape", "dims", "factor"),
    [
        ((256, 384), "MH", True),
        ((128, 128), "MH", True),
        ((128, 127), "MH", False),
        ((256,), "M", False),
        ((), "", False),
    ],
)
def test_equals_a_slow_float64_one(shape, dims, factor):
    start, grads, end = random_run(
        Adafactor(schedule=Constant(learning_rate=RATE)), spec_of(shape, dims), 100
    )
    assert_same_path(end, slow_adafactor(start, grads, factor=factor), start)


@pytest.mark.parametrize(
    ("shape", "dims", "factor"),
    [
        ((4, 130, 140), "EMH", True),
        ((200, 16, 8), "EMH", False),
        ((3, 150), "EM", False),
        ((5,), "E", False),
    ],
)
def test_experts_equal_slow_float64_ones_each_by_itself(shape, dims, factor):
    start, grads, end = random_run(
        Adafactor(schedule=Constant(learning_rate=RATE)), spec_of(shape, dims), 100
    )
    for expert in range(shape[0]):
        expected = slow_adafactor(start[expert], grads[:, expert], factor=factor)
        assert_same_path(end[expert], expected, start[expert])


def test_momentum_decay_and_the_bound_on_beta2():
    # By step 1001, 1 - step^-0.8 = 0.996, so the bound decides.
    optimizer = Adafactor(schedule=Constant(learning_rate=RATE), beta1=0.9, weight_decay=0.1)
    start, grads, end = random_run(optimizer, spec_of((130, 128), "MH"), 50, first_step=1000)
    options = {"factor": True, "first_step": 1000, "beta1": 0.9, "decay": 0.1}
    assert_same_path(end, slow_adafactor(start, grads, **options), start)
    unbounded = slow_adafactor(start, grads, beta2_cap=1.0, **options)
    with pytest.raises(AssertionError):
        assert_same_path(end, unbounded, start)


def rows_without_gradient(shape, size):
    """Gradients of that size but for the last row of the last weight."""
    grads = np.random.default_rng(2).normal(0, size, shape).astype(np.float32)
    grads.reshape(-1, shape[-1])[-1] = 0.0
    return grads


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
@pytest.mark.parametrize(
    ("shape", "dims", "weights"),
    [((128, 130), "MH", 1), ((3, 128, 130), "EMH", 1), ((128, 130), "MH", 3)],
)
def test_rows_without_a_gradient_beside_large_ones(shape, dims, weights, jit):
    """Rows have mean squares of 1e-30 and 1e14. The ratio is beyond float32.

    Three weights alike are moved as one stack. Where there is a gradient, every element moves by
    about the bound, 0.05 x 1e-3: at the first step each update is g / sqrt(V), near 1 in size.
    """
    specs = NestedMap({f"w{i}": spec_of(shape, dims) for i in range(weights)})
    theta = specs.map(lambda spec: tf.zeros(spec.shape))
    grads = specs.map(lambda spec: tf.constant(rows_without_gradient(shape, 1e7)))
    optimizer = Adafactor(schedule=Constant(learning_rate=RATE))
    update = tf.function(
        lambda *args: optimizer.update(*args, specs)[:2], jit_compile=jit, autograph=False
    )
    slots = init_theta(optimizer.slots(specs), 0)
    for step in range(2):
        theta, slots = update(theta, slots, grads, tf.constant(step, tf.int64))
    for path, moved in theta.flatten():
        rows = moved.numpy().reshape(-1, shape[-1])
        assert np.isfinite(rows).all(), path
        np.testing.assert_array_equal(rows[-1], 0.0)
        root_mean_square = np.sqrt(np.mean(rows[:-1] ** 2))
        assert 0.9 < root_mean_square / (2 * RATE * 1e-3) <= 1.01


def test_slots_are_weights_as_data():
    weights = NestedMap(
        experts=spec_of((8, 256, 1024), "EMH"),
        small=spec_of((8, 64, 1024), "EMH"),
        gate=spec_of((256, 8), "Me"),
        scale=spec_of((256,), "M"),
    )
    slots = dict(Adafactor().slots(weights).flatten())
    assert {path: (spec.shape, spec.dims) for path, spec in slots.items()} == {
        "experts/row": ((8, 256), "EM"),
        "experts/col": ((8, 1024), "EH"),
        "small/full": ((8, 64, 1024), "EMH"),
        "gate/full": ((256, 8), "Me"),
        "scale/full": ((256,), "M"),
    }
    with_momentum = dict(Adafactor(beta1=0.9).slots(weights).flatten())
    assert with_momentum["experts/momentum"].shape == (8, 256, 1024)
    assert all(not init_theta(NestedMap(w=spec), 0).w.numpy().any() for spec in slots.values())
