import pytest
import tensorflow as tf

from lingvo_moe.nn.nested_map import NestedMap


def tree():
    return NestedMap(b=NestedMap(y=2, x=1), a=0)


def test_attributes_are_keys():
    theta = tree()
    theta.c = 5
    assert (theta["c"], theta.b.x, theta.a) == (5, 1, 0)
    with pytest.raises(AttributeError, match=r"no key 'z'; it has \['x', 'y'\]"):
        _ = theta.b.z


def test_flatten_sorts_by_key():
    assert list(tree().flatten()) == [("a", 0), ("b/x", 1), ("b/y", 2)]
    assert list(tree().flatten("theta/")) == [("theta/a", 0), ("theta/b/x", 1), ("theta/b/y", 2)]


def test_unflatten_is_the_inverse():
    restored = NestedMap.unflatten(dict(tree().flatten()))
    assert restored == tree()
    assert type(restored.b) is NestedMap


def test_map_over_several_trees():
    doubled = tree().map(lambda x: 2 * x)
    assert doubled == {"a": 0, "b": {"x": 2, "y": 4}}
    assert type(doubled.b) is NestedMap
    sums = tree().map(lambda x, y, z: x + y + z, doubled, doubled)
    assert sums == {"a": 0, "b": {"x": 5, "y": 10}}


def test_map_hands_over_subtrees_of_the_others():
    # So an optimizer gets all slots of a weight at once.
    pairs = tree().map(
        lambda x, slots: slots["row"] + x, {"a": {"row": 7}, "b": {k: {"row": 1} for k in "xy"}}
    )
    assert pairs == {"a": 7, "b": {"x": 2, "y": 3}}


def test_tensorflow_nests_it():
    mapped = tf.nest.map_structure(lambda x: x + 1, tree())
    assert mapped == {"a": 1, "b": {"x": 2, "y": 3}}
    assert type(mapped) is NestedMap
    assert type(mapped.b) is NestedMap
    traced = tf.function(lambda m: m.map(lambda x: x + 1))(tree().map(tf.constant))
    assert traced.b.y.numpy() == 3
