import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.nn.tensorflow_private import OpSharding
from lingvo_moe.sbp.annotations import annotate, num_pieces, use_mesh
from lingvo_moe.sbp.types import Mesh

MESH = Mesh(("data", "expert"), (2, 4))


def sharding(dims, shape, rules, mesh=MESH):
    """The OpSharding that annotate writes in the graph of a concrete function."""

    @tf.function(autograph=False)
    def function(x):
        with use_mesh(mesh, rules):
            return annotate(x, dims)

    graph = function.get_concrete_function(tf.TensorSpec(shape, tf.float32)).graph
    (op,) = [op for op in graph.get_operations() if op.type == "XlaSharding"]
    proto = OpSharding()
    proto.ParseFromString(op.get_attr("_XlaSharding"))
    return proto


def devices(proto):
    return np.reshape(proto.tile_assignment_devices, proto.tile_assignment_dimensions).tolist()


def test_the_identity_outside_of_a_mesh():
    x = tf.ones([2, 3])
    assert annotate(x, "any letters at all") is x
    with use_mesh(MESH, {}):
        pass
    assert annotate(x, "GS") is x


def test_the_number_of_pieces():
    assert num_pieces("G") == 1
    with use_mesh(MESH, {"G": "expert", "B": ("data", "expert")}):
        assert [num_pieces(letter) for letter in "GBM"] == [4, 8, 1]


def test_replicated_where_no_rule_applies():
    proto = sharding("MH", [8, 16], {"E": "expert"})
    assert proto.type == OpSharding.REPLICATED


def test_split_over_the_whole_mesh():
    # Devices 0…7 in row-major order: (data, expert) = (0,0), (0,1), …, (1,3).
    proto = sharding("EM", [8, 16], {"E": "expert", "M": "data"})
    assert proto.type == OpSharding.OTHER
    assert not proto.replicate_on_last_tile_dim
    # Piece (e, m) lives on device (m, e), which is number 4m + e.
    assert devices(proto) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_one_dimension_over_two_axes():
    assert devices(sharding("GM", [8, 16], {"G": ("data", "expert")})) == [[i] for i in range(8)]


def test_copies_along_the_axes_that_split_nothing():
    proto = sharding("EM", [8, 16], {"E": "expert"})
    assert proto.replicate_on_last_tile_dim
    # The last dimension lists the holders of the same piece: experts 0 and 1 on devices 0 and 4.
    assert devices(proto) == [[[0, 4]], [[1, 5]], [[2, 6]], [[3, 7]]]
    assert devices(sharding("EM", [8, 16], {"M": "data"})) == [[[0, 1, 2, 3], [4, 5, 6, 7]]]


def test_gradients_are_annotated_alike():
    @tf.function(autograph=False)
    def gradient(x):
        with use_mesh(MESH, {"E": "expert"}), tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(annotate(x, "EM") ** 2)
            return tape.gradient(y, x)

    graph = gradient.get_concrete_function(tf.TensorSpec([8, 16], tf.float32)).graph
    attrs = [
        op.get_attr("_XlaSharding") for op in graph.get_operations() if op.type == "XlaSharding"
    ]
    assert len(attrs) == 2
    assert attrs[0] == attrs[1]


@pytest.mark.parametrize(
    ("shape", "rules", "message"),
    [
        ((8, 16), {"E": "model"}, "'model' names"),
        ((8, 16), {"E": "expert", "M": "expert"}, "'expert' would"),
        ((3, 16), {"E": "expert"}, "3 elements"),
        ((8, 16), {"E": ("expert", "data")}, "inner before"),
    ],
)
def test_errors(shape, rules, message):
    with use_mesh(MESH, rules), pytest.raises(ValueError, match=message):
        annotate(tf.ones(shape), "EM")
