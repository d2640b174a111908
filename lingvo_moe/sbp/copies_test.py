import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.nn.layer import Constant, WeightSpec
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.sbp import copies
from lingvo_moe.sbp.annotations import use_mesh
from lingvo_moe.sbp.types import Mesh

MESH = Mesh(("data", "expert"), (2, 2))
RULES = {"B": ("data", "expert"), "r": ("data",), "E": ("expert",), "H": ("data",)}
WEIGHTS = NestedMap(
    dense=WeightSpec((3, 5), Constant(0.0), "MA"),
    layers=WeightSpec((6, 3, 5), Constant(0.0), "YMA"),
    experts=WeightSpec((4, 3, 5), Constant(0.0), "EMA"),
    cut_like_rows=WeightSpec((3, 8), Constant(0.0), "MH"),
)


def compiled(function, *args, mesh=MESH):
    """Compiled by XLA for one device, which ignores annotations: only the arithmetic."""

    @tf.function(jit_compile=True, autograph=False)
    def annotated(*tensors):
        with use_mesh(mesh, RULES):
            return function(*tensors)

    return annotated(*args)


def test_what_is_copied():
    """4 devices split rows, 2 the rows of each expert; a scan's layers stay in front."""

    def shapes():
        theta = WEIGHTS.map(lambda spec: tf.zeros(spec.shape))
        found.update({path: w.shape for path, w in copies.expand_copies(theta, WEIGHTS).flatten()})

    found = {}
    compiled(shapes)
    assert found == {
        "dense": [4, 3, 5],
        "layers": [6, 4, 3, 5],
        "experts": [2, 4, 3, 5],
        "cut_like_rows": [3, 8],
    }
    shapes()  # without a mesh
    assert found == {path: list(spec.shape) for path, spec in WEIGHTS.flatten()}


FUNCTIONS = {
    "einsum": (lambda x, w: copies.einsum("BTM,MA->BTA", x, w), (8, 2, 3), WEIGHTS.dense),
    "matmul": (copies.matmul, (8, 3), WEIGHTS.dense),
    "matmul, experts": (copies.matmul, (4, 8, 3), WEIGHTS.experts),
    "per_row": (
        lambda x, w: x * copies.per_row(w, 1, x),
        (8, 2, 3),
        WeightSpec((3,), Constant(0.0), "M"),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_those_without_copies(name):
    """Values and gradients; those of weights once their copies are summed."""
    function, shape, spec = FUNCTIONS[name]
    random = np.random.default_rng(0)
    x, w = (random.integers(-5, 6, s).astype(np.float32) for s in (shape, spec.shape))

    def run(x, w):
        theta, weights = NestedMap(w=w), NestedMap(w=spec)
        shown = copies.expand_copies(theta, weights)
        with tf.GradientTape() as tape:
            tape.watch([x, shown.w])
            y = function(x, shown.w)
            loss = tf.reduce_sum(tf.square(y))
        d_x, d_w = tape.gradient(loss, [x, shown.w])
        return y, d_x, copies.sum_copies(NestedMap(w=d_w), weights).w, tf.rank(shown.w)

    *alone, rank = run(tf.constant(x), tf.constant(w))
    *shown, rank_shown = compiled(run, x, w)
    assert rank_shown == rank + 1
    for one, other in zip(alone, shown, strict=True):
        np.testing.assert_array_equal(one, other)


def test_lookups_are_those_without_copies():
    spec = WeightSpec((7, 3), Constant(0.0), "VM")
    table = np.arange(21.0, dtype=np.float32).reshape(7, 3)
    ids = np.random.default_rng(1).integers(0, 7, (8, 5)).astype(np.int32)

    def run(table, ids):
        shown = copies.expand_copies(NestedMap(w=table), NestedMap(w=spec))
        with tf.GradientTape() as tape:
            tape.watch(shown.w)
            rows = copies.lookup(shown.w, ids)
            loss = tf.reduce_sum(rows * rows)
        grad = tape.gradient(loss, shown).map(tf.convert_to_tensor)
        return rows, copies.sum_copies(grad, NestedMap(w=spec)).w

    rows, grad = compiled(run, table, ids)
    np.testing.assert_array_equal(rows, table[ids])
    expected = np.zeros_like(table)
    np.add.at(expected, ids, 2 * table[ids])
    np.testing.assert_array_equal(grad, expected)


@pytest.mark.parametrize("copied", [(), (2,)])
def test_the_gradient_of_a_frequent_row_is_exact_in_bfloat16(copied):
    """In bfloat16 a sum of ones ends at 256. The table is also that of the softmax."""
    table, ids = tf.ones([*copied, 4, 3], tf.bfloat16), tf.zeros([8, 512], tf.int32)
    with tf.GradientTape() as tape:
        tape.watch(table)
        loss = tf.reduce_sum(copies.lookup(table, ids)) + tf.reduce_sum(table)
    grad = tape.gradient(loss, table)
    terms = 4096 // (2 if copied else 1)
    assert (
        tf.cast(grad[..., 0, :], tf.int32).numpy().ravel().tolist()
        == [terms] * grad[..., 0, :].shape.num_elements()
    )
    assert grad[..., 1, :].numpy().tolist() == np.ones([*copied, 3]).tolist()


def test_the_gradient_of_a_copy_is_what_its_device_contributes():
    """Rows 0 and 1 are device 0's, 2 and 3 device 1's, and so on."""
    x = np.arange(8.0, dtype=np.float32)[:, None]

    def run(x):
        shown = copies.expand_copies(
            NestedMap(w=tf.ones([1, 1])), NestedMap(w=WeightSpec((1, 1), None, "MA"))
        )
        with tf.GradientTape() as tape:
            tape.watch(shown.w)
            loss = tf.reduce_sum(copies.matmul(x, shown.w))
        return tape.gradient(loss, shown.w)

    np.testing.assert_array_equal(np.ravel(compiled(run, x)), [0 + 1, 2 + 3, 4 + 5, 6 + 7])


def test_uneven_rows():
    with pytest.raises(ValueError, match="6 rows"):
        copies.matmul(tf.zeros([6, 3]), tf.zeros([4, 3, 5]))
