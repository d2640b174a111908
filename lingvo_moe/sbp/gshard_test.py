"""GShard's calls; runs itself where JAX has eight devices."""

import json

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.nn.tensorflow_private import OpSharding
from lingvo_moe.sbp.annotations import use_mesh
from lingvo_moe.sbp.gshard import manual, replicate, shard, split
from lingvo_moe.sbp.types import Mesh, parse_mesh
from lingvo_moe.testing.devices import run_on

MESH = Mesh(("x", "y"), (2, 4))
EIGHT = Mesh(("x",), (8,))
X = np.arange(11 * 24, dtype=np.float32).reshape(11, 24) / 64 - 1
TWO_BY_FOUR = [[7, 5, 3, 1], [0, 2, 4, 6]]
# Eleven rows or 24 columns in eight pieces, of which the last rows are padding: sums, products
# and maxima must not see it.
CASES = {
    "replicate": lambda x: tf.cumsum(replicate(x), axis=0),
    "even": lambda x: tf.reduce_max(split(x, 1, 8) - 9.0, axis=1),
    "uneven": lambda x: tf.reduce_max(split(x, 0, 8) - 9.0, axis=0),
    "product": lambda x: tf.matmul(split(x, 0, 8), split(x, 0, 8), transpose_a=True),
    "reversed": lambda x: tf.reverse(split(x, 0, 8), [0])[1:4],
    "again": lambda x: split(split(x, 0, 8) ** 2, 1, 8),
    "shard": lambda x: tf.reduce_prod(shard(x, TWO_BY_FOUR), axis=0),
    "order": lambda x: shard(split(x, 1, 8), np.arange(8)[None, ::-1]) + x,
    "one piece": lambda x: tf.nn.softmax(split(x, 0, 1)),
}


def on_eight(call, shape=(11, 24)):
    """The function of a tensor of that shape, traced for eight devices."""

    def traced(x):
        with use_mesh(EIGHT, {}):
            return call(x)

    return tf.function(traced, autograph=False).get_concrete_function(tf.TensorSpec(shape))


def annotation(shape, function):
    """The annotation that function adds to a tensor of that shape."""
    graph = on_eight(function, shape).graph
    (op,) = [op for op in graph.get_operations() if op.type == "XlaSharding"]
    proto = OpSharding()
    proto.ParseFromString(op.get_attr("_XlaSharding"))
    return proto


def devices(proto):
    return np.reshape(proto.tile_assignment_devices, proto.tile_assignment_dimensions).tolist()


def test_replicate():
    assert annotation([4, 2], replicate).type == OpSharding.REPLICATED


def test_split_gives_piece_i_to_device_i():
    proto = annotation([8, 16], lambda x: split(x, 1, 8))
    assert devices(proto) == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_split_may_be_uneven_and_into_one():
    assert np.shape(devices(annotation([8, 11], lambda x: split(x, 1, 8)))) == (1, 8)
    whole = annotation([8, 7], lambda x: split(x, 0, 1))
    assert whole.type == OpSharding.REPLICATED


def test_shard_places_every_piece():
    # The paper's example: [3, 16, 64] by an assignment of [1, 2, 4] makes pieces of [3, 8, 16].
    ids = [[[7, 5, 3, 1], [6, 4, 2, 0]]]
    assert devices(annotation([3, 16, 64], lambda x: shard(x, ids))) == ids


def test_without_a_mesh_nothing_changes():
    x = tf.constant(X)
    assert all(call(x) is x for call in (replicate, lambda x: split(x, 0, 4)))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: split(x, 0, 3),  # fewer pieces than devices
        lambda x: split(x, 0, 16),  # more
        lambda x: split(x[:5], 0, 8),  # more than elements
        lambda x: split(x, 2, 8),
        lambda x: split(x, -1, 8),
        lambda x: split(x, 0.5, 8),
        lambda x: split(x, 0, 0),
        lambda x: split(x, 0, -8),
        lambda x: split(x, 0, 7.5),
        lambda x: split(tf.compat.v1.placeholder_with_default(x, None), 0, 8),  # any rank
        lambda x: shard(x, np.arange(8)),  # another rank
        lambda x: shard(x, [[0, 1, 1, 3], [4, 5, 6, 7]]),  # a device twice
        lambda x: shard(x, [[1, 2, 3, 4], [5, 6, 7, 8]]),
        lambda x: shard(x, np.arange(8)[None] + 0.5),
        lambda x: shard(x, [[3]]),
        lambda x: shard(x, np.zeros([0, 8])),
    ],
)
def test_wrong_calls(call):
    with pytest.raises(ValueError, match=r"device_assignment must|split_dimension must") as error:
        on_eight(call)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("call", CASES.values(), ids=CASES)
def test_outside_of_a_function(call):
    with use_mesh(EIGHT, {}), pytest.raises(ValueError, match="only in a tf"):
        call(tf.constant(X))


def test_the_numbers_of_one_device():
    """Values and gradients; and split again along another dimension is an AllToAll."""
    found, sent = run_on(8, __file__)
    assert sent["all-to-all"]
    x = tf.constant(X)
    for name, call in CASES.items():
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = call(x)
        values = result, tape.gradient(result, x)
        for ours, expected in zip(found.pop(name), values, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5, err_msg=name)
    assert not found


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


def main():
    """Prints values and gradients of all cases on eight devices."""
    from lingvo_moe.runtimes.hlo import collectives, count
    from lingvo_moe.runtimes.lowering import ArraySpec, Layout, partitioned, shapes
    from lingvo_moe.sbp.params import ShardingParams

    def run(args):
        results = {}
        for i, call in enumerate(CASES.values()):
            with tf.GradientTape() as tape:
                tape.watch(args.x)
                result = call(args.x)
            results |= {f"{i}": result, f"{i}g": tape.gradient(result, args.x)}
        return results

    args = [{"x": ArraySpec(X.shape, "float32", "..")}]
    layout = Layout(EIGHT, ShardingParams(rules=(("X", ("x",)),)))
    program = partitioned(run, args, None, layout).lower(*shapes(args)).compile()
    found = program({"x": X})
    report = {name: [found[f"{i}"], found[f"{i}g"]] for i, name in enumerate(CASES)}
    report = {name: [np.asarray(x).tolist() for x in pair] for name, pair in report.items()}
    print(json.dumps([report, count(collectives(program.as_text()))]))


if __name__ == "__main__":
    main()
