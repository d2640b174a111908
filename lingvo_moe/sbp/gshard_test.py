import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.nn.tensorflow_private import OpSharding
from lingvo_moe.sbp.annotations import Mesh, parse_mesh, use_mesh
from lingvo_moe.sbp.gshard import manual, replicate, shard, split

MESH = Mesh(("x", "y"), (2, 4))


def annotation(shape, function):
    """The annotation that function adds to a tensor of that shape."""
    traced = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec(shape))
    (op,) = [op for op in traced.graph.get_operations() if op.type == "XlaSharding"]
    proto = OpSharding()
    proto.ParseFromString(op.get_attr("_XlaSharding"))
    return proto


def devices(proto):
    return np.reshape(proto.tile_assignment_devices, proto.tile_assignment_dimensions).tolist()


def test_replicate():
    assert annotation([4, 2], replicate).type == OpSharding.REPLICATED


def test_split_gives_piece_i_to_device_i():
    proto = annotation([8, 6], lambda x: split(x, 1, 3))
    assert devices(proto) == [[0, 1, 2]]


def test_split_may_be_uneven_and_into_one():
    assert devices(annotation([8, 7], lambda x: split(x, 1, 3))) == [[0, 1, 2]]
    whole = annotation([8, 7], lambda x: split(x, 0, 1))
    assert whole.type == OpSharding.REPLICATED


def test_shard_places_every_piece():
    # The paper's example: [3, 16, 64] by an assignment of [1, 2, 4] makes pieces of [3, 8, 16].
    ids = [[[7, 5, 3, 1], [6, 4, 2, 0]]]
    assert devices(annotation([3, 16, 64], lambda x: shard(x, ids))) == ids


@pytest.mark.parametrize("call", [lambda x: split(x, 0, 4), lambda x: shard(x, [[0, 1, 1, 3]])])
def test_errors(call):
    with pytest.raises(ValueError, match="device_assignment"):
        call(tf.ones([3, 8]))


def test_a_region_by_hand_without_a_mesh_gets_all_of_it():
    result = manual(lambda x, y: x + y, [tf.ones([3]), tf.ones([3])], ["A", "A"], "A")
    np.testing.assert_array_equal(result, [2, 2, 2])


def test_a_region_by_hand_sees_pieces():
    seen = []

    def double(x):
        seen.append(x.shape.as_list())
        return tf.concat([x, x], axis=1)

    @tf.function(autograph=False)
    def run(x):
        with use_mesh(MESH, {"A": "x", "B": "y"}), tf.GradientTape() as tape:
            tape.watch(x)
            doubled = manual(double, [x], ["AB"], "AB")
            return doubled, tape.gradient(doubled, x)

    whole, gradient = run.get_concrete_function(tf.TensorSpec([6, 8])).structured_outputs
    assert seen[0] == [6 // 2, 8 // 4]
    assert whole.shape == [6, 16]
    assert gradient.shape == [6, 8]


def test_a_region_by_hand_wants_equal_pieces():
    with (
        use_mesh(MESH, {"A": "y"}),
        pytest.raises(ValueError, match="4 equal"),
    ):
        tf.function(lambda x: manual(tf.identity, [x], ["AB"], "AB"))(tf.ones([6, 2]))


def test_meshes_from_text():
    assert parse_mesh("data:2,expert:4") == Mesh(("data", "expert"), (2, 4))
    assert str(parse_mesh("data:2,expert:4")) == "data:2,expert:4"


@pytest.mark.parametrize("text", ["data:2,", "data:-2", "data:2,data:2", "data:0"])
def test_bad_texts(text):
    with pytest.raises(ValueError, match="esh"):
        parse_mesh(text)
