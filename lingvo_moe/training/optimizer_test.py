import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.nn.layer import Normal, Uniform, WeightSpec, init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.training.adafactor import Adafactor
from lingvo_moe.training.adamw import AdamW
from lingvo_moe.training.muon import Muon
from lingvo_moe.training.optimizer import Optimizer, clip_by_global_norm, zeros_like
from lingvo_moe.training.schedules import Constant


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sgd(Optimizer):
    def weight_slots(self, spec):
        return NestedMap(steps=zeros_like(spec))

    def update_weight(self, weight, slots, grad, spec, rate, count):
        return rate * grad, NestedMap(steps=slots.steps + 1.0)


WEIGHTS = NestedMap(
    a=WeightSpec((2,), Uniform(1.0), "M"), inner=NestedMap(b=WeightSpec((2, 3), Uniform(1.0), "MH"))
)


def test_update_walks_the_trees():
    optimizer = Sgd(schedule=Constant(learning_rate=0.5, warmup_steps=4), weight_decay=0.1)
    theta = NestedMap(a=tf.constant([1.0, 2.0]), inner=NestedMap(b=tf.ones([2, 3])))
    slots = init_theta(optimizer.slots(WEIGHTS), seed=0)
    assert [path for path, _ in slots.flatten()] == ["a/steps", "inner/b/steps"]
    step = tf.constant(1, tf.int64)  # the second: half of the warm-up, so the rate is 0.25
    grads = theta.map(tf.ones_like)
    new_theta, new_slots, metrics = optimizer.update(theta, slots, grads, step, WEIGHTS)
    assert metrics.learning_rate.numpy() == 0.25
    # 1 - 0.25·1 - 0.25·0.1·1 = 0.725 and 2 - 0.25 - 0.05 = 1.7
    np.testing.assert_allclose(new_theta.a, [0.725, 1.7], rtol=1e-6)
    np.testing.assert_allclose(new_theta.inner.b, np.full([2, 3], 0.725), rtol=1e-6)
    np.testing.assert_array_equal(new_slots.inner.b.steps, np.ones([2, 3]))
    np.testing.assert_array_equal(theta.a, [1.0, 2.0])


class SlotsForMatrices(Sgd):
    def weight_slots(self, spec):
        return super().weight_slots(spec) if len(spec.shape) == 2 else NestedMap()

    def update_weight(self, weight, slots, grad, spec, rate, count):
        return rate * grad, slots.map(lambda steps: steps + 1.0)


def test_a_weight_may_have_no_slots():
    optimizer = SlotsForMatrices(schedule=Constant(learning_rate=0.5))
    specs = optimizer.slots(WEIGHTS)
    assert [path for path, _ in specs.flatten()] == ["inner/b/steps"]
    assert list(specs) == ["inner"]
    theta, grads = (WEIGHTS.map(lambda spec, v=v: tf.fill(spec.shape, v)) for v in (3.0, 1.0))
    slots = specs.map(lambda spec: tf.zeros(spec.shape))
    theta, slots, _ = optimizer.update(theta, slots, grads, tf.constant(0, tf.int64), WEIGHTS)
    assert {path: weight.numpy().ravel()[0] for path, weight in theta.flatten()} == {
        "a": 2.5,
        "inner/b": 2.5,
    }
    assert list(slots) == ["inner"]
    np.testing.assert_array_equal(slots.inner.b.steps, np.ones([2, 3]))


@pytest.mark.parametrize("decay", [0.0, 0.2, 0.999])
def test_the_moving_average_by_hand(decay):
    """The weight is 10 - n after n steps; the average keeps min(decay, (n - 1) / (n + 8))."""
    optimizer = Sgd(schedule=Constant(learning_rate=1.0), ema_decay=decay)
    theta = init_theta(WEIGHTS, 0).map(lambda w: tf.fill(w.shape, 10.0))
    slots, average = init_theta(optimizer.slots(WEIGHTS), 0), 0.0
    assert optimizer.slots(WEIGHTS).inner.b.ema.dims == "MH"
    for n in range(1, 6):
        grads, step = theta.map(tf.ones_like), tf.constant(n - 1, tf.int64)
        theta, slots, _ = optimizer.update(theta, slots, grads, step, WEIGHTS)
        keep = min(decay, (n - 1) / (n + 8))
        average = keep * average + (1 - keep) * (10 - n)
        np.testing.assert_allclose(slots.inner.b.ema, np.full([2, 3], average), rtol=1e-6)
    averaged = optimizer.averaged(theta, slots, WEIGHTS)
    np.testing.assert_array_equal(averaged.a, slots.a.ema)


def test_adamw_equals_keras_over_100_steps():
    """Of Adafactor see adafactor_test.py."""
    weights = NestedMap(w=WeightSpec((3, 5, 4), Normal(1.0), "EMH"))
    optimizer = AdamW(schedule=Constant(learning_rate=0.01), weight_decay=0.1)
    theta, slots = init_theta(weights, 0), init_theta(optimizer.slots(weights), 0)
    oracle = tf.keras.optimizers.AdamW(0.01, weight_decay=0.1, epsilon=1e-8)
    weight = tf.Variable(theta.w)
    update = tf.function(lambda *args: optimizer.update(*args, weights)[:2], autograph=False)
    rng = np.random.default_rng(1)
    for step in range(100):
        grad = tf.constant(rng.normal(0, 1 + step % 7, [3, 5, 4]), tf.float32)
        theta, slots = update(theta, slots, NestedMap(w=grad), tf.constant(step, tf.int64))
        oracle.apply_gradients([(grad, weight)])
    np.testing.assert_allclose(theta.w, weight, rtol=1e-5, atol=1e-6)


class StackingAdamW(AdamW):
    takes_stacks = True


def alike(**kinds):
    """Three weights of each kind: a shape and dims by name."""
    return NestedMap(
        {
            name: NestedMap({f"{i}": WeightSpec(shape, Uniform(1.0), dims) for i in range(3)})
            for name, (shape, dims) in kinds.items()
        }
    )


ALIKE = alike(
    scalar=((), ""),
    scale=((128,), "M"),
    factored=((130, 128), "MA"),
    full=((128, 8), "Me"),
    experts=((4, 16, 32), "EMH"),
    layers=((2, 128, 20), "YMH"),
    experts_of_layers=((2, 3, 8, 9), "YEMH"),
    large=((257, 256), "MH"),
)
CONSTANT = Constant(learning_rate=0.05)


@pytest.mark.parametrize(
    "optimizer",
    [
        Adafactor(schedule=CONSTANT),
        Adafactor(schedule=CONSTANT, beta1=0.9, weight_decay=0.1),
        StackingAdamW(schedule=CONSTANT, weight_decay=0.1),
        Muon(schedule=CONSTANT, weight_decay=0.1),
    ],
)
def test_weights_that_are_alike_move_as_each_does_alone(optimizer, monkeypatch):
    updates = []
    one = type(optimizer).update_weight

    def counted(self, weight, *args):
        updates.append(weight.shape)
        return one(self, weight, *args)

    def run():
        theta, slots = init_theta(ALIKE, 0), init_theta(optimizer.slots(ALIKE), 0)
        for step in range(3):
            grads = init_theta(ALIKE, step + 1).map(lambda grad, size=10.0**step: size * grad)
            theta, slots, _ = optimizer.update(theta, slots, grads, tf.constant(step), ALIKE)
        return [*theta.flatten(), *slots.flatten()]

    # A class that overrides update_weight must set takes_stacks again.
    fields = {f.name: getattr(optimizer, f.name) for f in dataclasses.fields(optimizer)}
    members = {"update_weight": counted, "takes_stacks": True}
    optimizer = type("Counting", (type(optimizer),), members)(**fields)
    stacked = run()
    assert len(updates) == 3 * (7 + 3)  # three steps of seven stacks and of three large weights
    updates.clear()
    monkeypatch.setattr(type(optimizer), "takes_stacks", False)
    alone = run()
    assert len(updates) == 3 * 8 * 3
    for (path, value), (same_path, expected) in zip(stacked, alone, strict=True):
        assert path == same_path
        np.testing.assert_array_equal(value, expected, err_msg=path)


def test_rate_factors():
    """The first pattern found in a path counts; 0 freezes; weights alike stay together."""
    weights = alike(w=((2,), "M"), bias=((2,), "M"))
    optimizer = Adafactor(
        schedule=Constant(learning_rate=0.5),
        weight_decay=0.1,
        rate_factors=(("w/0", 0), ("w/", 0.25), ("/0", 2)),
    )
    factors = {"bias/0": 2, "bias/1": 1, "bias/2": 1, "w/1": 0.25, "w/2": 0.25}
    assert optimizer.factors(weights) == factors
    specs = optimizer.slots(weights)
    assert {path.removesuffix("/full") for path, _ in specs.flatten()} == set(factors)
    theta, frozen = optimizer.split(init_theta(weights, 1), weights)
    assert [path for path, _ in frozen.flatten()] == ["w/0"]
    grads = theta.map(tf.ones_like)
    moved, _, metrics = optimizer.update(
        theta, init_theta(specs, 1), grads, tf.constant(0), weights
    )
    assert metrics.learning_rate.numpy() == 0.5
    before = dict(theta.flatten())
    for path, after in moved.flatten():
        # A first update has the root mean square 1, times max(RMS(weight), 0.001).
        size = tf.sqrt(tf.reduce_mean(before[path] ** 2))
        change = factors[path] * 0.5 * (size + 0.1 * before[path])
        np.testing.assert_allclose(before[path] - after, change, rtol=1e-5, err_msg=path)


def test_clip_by_global_norm():
    # √(3² + 4²) = 5
    grads = NestedMap(a=tf.constant([3.0, 0.0]), b=NestedMap(c=tf.constant([[4.0]])))
    clipped, norm = clip_by_global_norm(grads, 1.0)
    assert norm.numpy() == 5.0
    np.testing.assert_allclose(clipped.a, [0.6, 0.0], rtol=1e-6)
    np.testing.assert_allclose(clipped.b.c, [[0.8]], rtol=1e-6)
    for max_norm in (5.0, 100.0, None):
        clipped, norm = clip_by_global_norm(grads, max_norm)
        assert norm.numpy() == 5.0
        np.testing.assert_array_equal(clipped.a, grads.a)
