import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.nn.layer import (
    EVALUATION,
    Constant,
    Context,
    Normal,
    Uniform,
    WeightSpec,
    count_weights,
    dropout,
    init_theta,
    layer_names,
    stacked,
)
from lingvo_moe.nn.nested_map import NestedMap

TRAINING = Context(tf.constant([1, 2]))


def test_weight_specs():
    spec = WeightSpec((3, 4), Normal(1.0), "MH")
    assert spec.size == 12
    assert spec.stacked(8, "E") == WeightSpec((8, 3, 4), Normal(1.0), "EMH")
    tree = NestedMap(a=spec, b=NestedMap(scalar=WeightSpec((), Constant(1.0), "")))
    assert count_weights(tree) == 13
    assert stacked(tree, 8, "E").b.scalar == WeightSpec((8,), Constant(1.0), "E")
    with pytest.raises(ValueError, match=r"dims 'M' must name each dimension of \(3, 4\)"):
        WeightSpec((3, 4), Normal(1.0), "M")


def test_initializers():
    theta = init_theta(
        NestedMap(
            constant=WeightSpec((3,), Constant(0.5), "M"),
            normal=WeightSpec((200, 200), Normal(0.1), "MH"),
            uniform=WeightSpec((200, 200), Uniform(0.3), "MH"),
        ),
        seed=1,
    )
    assert {x.dtype for x in theta.values()} == {tf.float32}
    np.testing.assert_array_equal(theta.constant, [0.5] * 3)
    # The standard deviation of a uniform is its limit/√3; 40000 draws estimate it within 1 %.
    assert np.std(theta.normal) == pytest.approx(0.1, rel=0.02)
    assert np.std(theta.uniform) == pytest.approx(0.3 / 3**0.5, rel=0.02)
    assert 0.299 < np.max(theta.uniform) <= 0.3
    assert -0.3 <= np.min(theta.uniform) < -0.299


def test_a_weight_depends_on_its_path_and_the_seed_alone():
    spec = WeightSpec((4,), Normal(1.0), "M")
    alone = init_theta(NestedMap(b=NestedMap(w=spec)), seed=3)
    among = init_theta(NestedMap(a=spec, b=NestedMap(v=spec, w=spec)), seed=3)
    np.testing.assert_array_equal(alone.b.w, among.b.w)
    assert np.all(among.b.v.numpy() != among.b.w.numpy())
    assert np.all(init_theta(NestedMap(b=NestedMap(w=spec)), seed=4).b.w != alone.b.w)


def test_stacked_weights_start_apart():
    experts = init_theta(NestedMap(w=WeightSpec((2, 5), Normal(1.0), "EM")), seed=0).w
    assert np.all(experts[0] != experts[1])


def test_contexts():
    assert TRAINING.training
    assert not EVALUATION.training
    assert EVALUATION.fold("x") is EVALUATION
    seeds = [TRAINING.fold(name).seed.numpy().tolist() for name in ("encoder", "decoder")]
    assert seeds[0] != seeds[1]
    assert seeds[0] == TRAINING.fold("encoder").seed.numpy().tolist()
    assert seeds[0] != Context(tf.constant([1, 3])).fold("encoder").seed.numpy().tolist()


def test_dropout_keeps_the_mean_and_is_reproducible():
    outputs = dropout(tf.ones([200, 200]), 0.2, TRAINING).numpy()
    assert set(np.unique(outputs)) == {np.float32(0.0), np.float32(1.25)}
    # 40000 draws of probability 0.2: a standard deviation of 0.002.
    assert np.mean(outputs == 0.0) == pytest.approx(0.2, abs=0.008)
    np.testing.assert_array_equal(outputs, dropout(tf.ones([200, 200]), 0.2, TRAINING))
    other = dropout(tf.ones([200, 200]), 0.2, TRAINING.fold("other"))
    assert np.any(outputs != other.numpy())


def test_dropout_keeps_the_mean_in_bfloat16():
    # 1/0.9 is rounded to 1.109375, 0.9984 of it. The mean has a standard deviation of 0.0003.
    ones = tf.ones([200, 200], tf.bfloat16)
    outputs = [dropout(ones, 0.1, TRAINING.fold(f"{i}")) for i in range(64)]
    assert np.mean(tf.cast(outputs, tf.float32)) == pytest.approx(1.0, abs=0.0008)


def test_dropout_is_the_identity_in_evaluation_and_at_rate_zero():
    inputs = tf.ones([3])
    assert dropout(inputs, 0.5, EVALUATION) is inputs
    assert dropout(inputs, 0.0, TRAINING) is inputs


def test_layer_names_sort_in_order():
    for count, first in ((12, "layer_00"), (100, "layer_00"), (101, "layer_000")):
        names = list(layer_names(count))
        assert names[0] == first
        assert names == sorted(names)
        assert len(set(names)) == count
