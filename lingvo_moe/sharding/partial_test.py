import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.core.layer import Constant, WeightSpec
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.sharding import partial, sbp, signatures
from lingvo_moe.sharding.accumulation import accumulate, cut_rows
from lingvo_moe.sharding.annotations import Mesh, use_mesh
from lingvo_moe.sharding.partial import Placed, add, einsum, place, reduce_partial
from lingvo_moe.sharding.sbp import B, P, S, parse

GRID = Mesh(("x", "y"), (2, 2))


def on_mesh(function, *args, mesh=GRID, rules=()):
    """Compiled by XLA, for one device, to which annotations mean nothing: the arithmetic alone."""

    @tf.function(jit_compile=True, autograph=False)
    def annotated(*tensors):
        with use_mesh(mesh, dict(rules)):
            return function(*tensors)

    return annotated(*args)


def traced(function, *shapes, mesh=GRID, rules=()):
    """The function called on tensors of these shapes, of which only the shapes are ever known."""
    with tf.Graph().as_default(), use_mesh(mesh, dict(rules)):
        return function(*(tf.zeros(shape) for shape in shapes))


def test_nothing_is_partial_without_a_mesh():
    x, w = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    y = einsum("BM,MH->BH", place(tf.constant(x), "BM"), place(tf.constant(w), "MH"))
    assert (y.sbp, y.explicit) == ((), ())
    np.testing.assert_array_equal(y.tensor, x @ w)
    y = partial.transpose(partial.reshape(partial.scale(add(y, y), 0.5), [4, 2]), [1, 0])
    np.testing.assert_array_equal(reduce_partial(y), (x @ w).reshape(4, 2).T)


def test_summands_are_in_front():
    def function(x, w):
        y = einsum("BM,MH->BH", place(x, "BM"), place(w, "MH"))
        assert (y.sbp, y.explicit, y.shape) == (parse("S(0),P"), ("y",), (4, 3))
        return y.value

    random = np.random.default_rng(0)
    x, w = random.normal(size=(4, 6)), random.normal(size=(6, 3))
    value = on_mesh(function, x, w, rules={"B": "x", "M": "y"})
    # Device y = 0 has the first three columns of x and rows of w, y = 1 the rest.
    np.testing.assert_allclose(value, [x[:, :3] @ w[:3], x[:, 3:] @ w[3:]])


def shown(whole, held, copied, random):
    """The value and explicit axes of a Placed: summands in front, and copies where asked for."""
    visible = [
        one == P or (one == B and axis in copied) for axis, one in zip("xy", held, strict=True)
    ]
    only = sbp.NdSbp(one if see else B for one, see in zip(held, visible, strict=True))
    pieces = sbp.cut(whole, only, GRID, random)[tuple(slice(None) if v else 0 for v in visible)]
    return pieces, tuple(axis for axis, see in zip("xy", visible, strict=True) if see)


@pytest.mark.parametrize("equation", ["ab,bc->ca", "ab,b->ab", "abc,cb->a"])
def test_every_signature_on_a_grid(equation):
    """Against NumPy, with operands in all legal ways and now and then with copies in front."""
    random = np.random.default_rng(1)
    terms = equation.split("->")[0].split(",")
    wholes = [random.integers(-9, 10, [4] * len(term)).astype(np.float64) for term in terms]
    expected = np.einsum(equation, *wholes)
    found = list(signatures.nd_signatures(signatures.einsum(equation), GRID.shape))
    values, layouts = [], []
    for i, signature in enumerate(found):
        copied = ["", "x", "y", "xy"][i % 4]
        operands = [
            shown(whole, held, copied, random)
            for whole, held in zip(wholes, signature.operands, strict=True)
        ]
        values.append([value for value, _ in operands])
        layouts.append([explicit for _, explicit in operands])

    def function(*tensors):
        tensors, results = iter(tensors), []
        for signature, explicit in zip(found, layouts, strict=True):
            operands = [
                Placed(next(tensors), held, front)
                for held, front in zip(signature.operands, explicit, strict=True)
            ]
            result = einsum(equation, *operands)
            assert result.sbp == signature.result
            results.append(result)
        fronts.extend(result.explicit for result in results)
        return [result.value for result in results]

    fronts = []
    results = on_mesh(function, *(v for pair in values for v in pair))
    for signature, front, result in zip(found, fronts, results, strict=True):
        value = result.numpy()
        for axis in reversed(front):
            held = signature.result["xy".index(axis)]
            value = value.sum(front.index(axis)) if held == P else value.take(-1, front.index(axis))
        np.testing.assert_allclose(value, expected, err_msg=str(signature))


@pytest.mark.parametrize("source", ["S(0),B", "B,P", "S(0),S(0)", "P,S(1)"])
def test_boxing_keeps_the_tensor(source):
    random = np.random.default_rng(2)
    whole = random.integers(-9, 10, (4, 8)).astype(np.float64)
    whole[0, 0] = np.inf if P not in parse(source) else 1  # zeros elsewhere are no products
    value, explicit = shown(whole, parse(source), "", random)
    targets = list(sbp.every(2, 2))

    def function(value):
        placed = Placed(value, parse(source), explicit)
        return [partial.box(placed, target).value for target in targets]

    for target, result in zip(targets, on_mesh(function, value), strict=True):
        added = result.numpy().sum(tuple(range(target.count(P))))
        np.testing.assert_array_equal(added, whole, err_msg=str(target))


def test_linear_operators():
    def function(x, w, bias):
        y = einsum("BM,MH->BH", place(x, "BM"), place(w, "MH"))
        y = add(place(bias, "BH"), partial.scale(y, 3.0))
        y = partial.reshape(partial.transpose(y, [1, 0]), [2, 3, 4])
        assert y.sbp == parse("S(2),P")
        return reduce_partial(y), reduce_partial(y, S(0))

    random = np.random.default_rng(3)
    x, w, bias = (random.normal(size=s) for s in ((4, 8), (8, 6), (4, 6)))
    copied, cut = on_mesh(function, x, w, bias, rules={"B": "x", "M": "y"})
    expected = (3 * x @ w + bias).T.reshape(2, 3, 4)
    np.testing.assert_allclose(copied, expected)
    np.testing.assert_allclose(cut, expected)


def product(x, w):
    return einsum("BM,MH->BH", place(x, "BM"), place(w, "MH"))


@pytest.mark.parametrize(
    ("function", "shapes", "rules", "message"),
    [
        (
            lambda x, w: product(x, w).tensor,
            [(4, 6), (6, 4)],
            {"M": "x"},
            "use reduce_partial first",
        ),
        (product, [(4, 5), (5, 4)], {"M": "x"}, "5 elements, which do not fall into 2 equal"),
        (
            lambda x, w: einsum("BM,MH->BH", place(x, "BM"), place(w, "NH")),
            [(4, 6), (6, 4)],
            {"M": "x"},
            r"no signature for S\(1\), B on axis 'x'.*Box an operand first",
        ),
        (
            lambda x, w: add(place(x, "BM"), place(w, "MB")),
            [(4, 4), (4, 4)],
            {"M": "x"},
            r"held alike but for P, got S\(1\),B; S\(0\),B",
        ),
        (
            lambda x: partial.reshape(place(x, "BM"), [24]),
            [(4, 6)],
            {"M": "x"},
            r"no signature for S\(1\) on axis 'x'",
        ),
        (
            lambda x: partial.copies(place(x, "BM"), ["x"]),
            [(4, 6)],
            {"M": "x"},
            "has no copies along 'x'",
        ),
        (
            lambda x: partial.box(partial.copies(place(x, "BM"), ["y"]), parse("B,B")),
            [(4, 6)],
            {"M": "x"},
            "Only a tensor without copies can be boxed, to B,B",
        ),
        (lambda x, y: add(place(x, "B"), place(y, "B")), [(4,), (6,)], {}, "tensors of one shape"),
    ],
)
def test_errors(function, shapes, rules, message):
    with pytest.raises(ValueError, match=message):
        traced(function, *shapes, rules=rules)


def losses(theta, part):
    hidden = tf.nn.relu(einsum("BM,MH->BH", place(part.x, "BM"), theta.w).tensor)
    return tf.reduce_sum(hidden * hidden, 1)


WEIGHTS = NestedMap(w=WeightSpec((6, 4), Constant(0), "MH"))


@pytest.mark.parametrize("rules", [{"B": "x"}, {"B": ("x", "y")}, {"B": "x", "H": "y"}, {}])
def test_accumulated_gradients(rules):
    random = np.random.default_rng(4)
    x, w = random.normal(size=(12, 6)), random.normal(size=(6, 4))

    def function(x, w):
        loss, grads = accumulate(losses, NestedMap(w=w), WEIGHTS, NestedMap(x=x), 3)
        return loss, grads.w

    hidden = np.maximum(x @ w, 0)
    for loss, grad in (on_mesh(function, x, w, rules=rules), function(*map(tf.constant, (x, w)))):
        np.testing.assert_allclose(loss, (hidden**2).sum())
        np.testing.assert_allclose(grad, 2 * x.T @ hidden)


def test_weights_cut_where_rows_are_have_nothing_to_defer():
    def every_row(theta, part):  # as experts see tokens: of all devices, by columns of weights
        hidden = einsum("bM,MH->bH", place(part.x, "bM"), theta.w).tensor
        return tf.reduce_sum(hidden * hidden, 1)

    def function(x, w):
        _, grads = accumulate(every_row, NestedMap(w=w), WEIGHTS, NestedMap(x=x), 3)
        return grads.w

    random = np.random.default_rng(5)
    x, w = random.normal(size=(12, 6)), random.normal(size=(6, 4))
    grad = on_mesh(function, x, w, rules={"B": "x", "H": "x"})
    np.testing.assert_allclose(grad, 2 * x.T @ (x @ w))


def test_rows_stay_where_they_are():
    def function(x):
        return [part.x for part in cut_rows(NestedMap(x=x), 2)]

    # x holds rows 0 … 3 on device 0 and 4 … 7 on device 1: two of each in each micro-batch.
    parts = on_mesh(function, np.arange(8), rules={"B": "x"})
    assert [part.numpy().tolist() for part in parts] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    with pytest.raises(
        ValueError, match=r"6 rows do not fall into 2 micro-batches .* for 2 devices"
    ):
        traced(function, (6,), rules={"B": "x"})
