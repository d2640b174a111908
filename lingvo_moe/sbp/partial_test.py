import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.sbp import partial, signatures, types
from lingvo_moe.sbp.partial import Placed, add, einsum, place, reduce_partial
from lingvo_moe.sbp.types import B, P, S, parse
from lingvo_moe.sharding.annotations import Mesh, use_mesh

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


def shown(whole, held, random):
    """The value of a Placed: summands in front."""
    only = types.NdSbp(one if one == P else B for one in held)
    pieces = types.cut(whole, only, GRID, random)
    return pieces[tuple(slice(None) if one == P else 0 for one in held)]


@pytest.mark.parametrize("equation", ["ab,bc->ca", "ab,b->ab", "abc,cb->a"])
def test_every_signature_on_a_grid(equation):
    """Against NumPy, with operands in all legal ways."""
    random = np.random.default_rng(1)
    terms = equation.split("->")[0].split(",")
    wholes = [random.integers(-9, 10, [4] * len(term)).astype(np.float64) for term in terms]
    expected = np.einsum(equation, *wholes)
    found = list(signatures.nd_signatures(signatures.einsum(equation), GRID.shape))
    values = [
        shown(whole, held, random)
        for signature in found
        for whole, held in zip(wholes, signature.operands, strict=True)
    ]

    def function(*tensors):
        tensors, results = iter(tensors), []
        for signature in found:
            result = einsum(equation, *(Placed(next(tensors), held) for held in signature.operands))
            assert result.sbp == signature.result
            results.append(result)
        return [result.value for result in results]

    for signature, result in zip(found, on_mesh(function, *values), strict=True):
        added = result.numpy().sum(tuple(range(signature.result.count(P))))
        np.testing.assert_allclose(added, expected, err_msg=str(signature))


@pytest.mark.parametrize("source", ["S(0),B", "B,P", "S(0),S(0)", "P,S(1)"])
def test_boxing_keeps_the_tensor(source):
    random = np.random.default_rng(2)
    whole = random.integers(-9, 10, (4, 8)).astype(np.float64)
    whole[0, 0] = np.inf if P not in parse(source) else 1  # zeros elsewhere are no products
    value = shown(whole, parse(source), random)
    targets = list(types.every(2, 2))

    def function(value):
        placed = Placed(value, parse(source))
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
        (lambda x, y: add(place(x, "B"), place(y, "B")), [(4,), (6,)], {}, "tensors of one shape"),
    ],
)
def test_errors(function, shapes, rules, message):
    with pytest.raises(ValueError, match=message):
        traced(function, *shapes, rules=rules)
