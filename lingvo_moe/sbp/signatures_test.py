"""Signatures compared with a search over all placements, computed on pieces."""

import itertools
import string

import numpy as np
import pytest

from lingvo_moe.sbp import signatures, types
from lingvo_moe.sbp.signatures import Lettered, Linear
from lingvo_moe.sbp.types import B, Mesh, S, parse
from lingvo_moe.testing.sbp import cut, join

MESHES = [Mesh(("x",), (2,)), Mesh(("x",), (3,)), Mesh(("x", "y"), (2, 2))]


def legal_by_trial(compute, operands, mesh, seed=0):
    """All (*operands, result) for which what devices compute on their pieces is the result's.

    compute(pieces, held) gets one device's pieces, and for each operand which rows of its first
    dimension these are.
    """
    random = np.random.default_rng(seed)
    whole = [np.arange(len(o)) if o.ndim else np.arange(1) for o in operands]
    expected = np.asarray(compute(operands, whole))
    found = set()
    for placed in itertools.product(*(_even(o.shape, mesh) for o in operands)):
        pieces = [cut(o, p, mesh, random) for o, p in zip(operands, placed, strict=True)]
        rows = [cut(w, _first(p), mesh, random) for w, p in zip(whole, placed, strict=True)]
        results = _on_each_device(compute, pieces, rows, mesh)
        if results is None:
            continue
        for result in _even(expected.shape, mesh):
            if results.shape[len(mesh.axes) :] != types.piece_shape(expected.shape, result, mesh):
                continue
            try:
                same = np.allclose(join(results, result, mesh), expected)
            except AssertionError:  # copies differ
                continue
            if same:
                found.add((*placed, result))
    return found


def _on_each_device(compute, pieces, rows, mesh):
    results = np.empty(mesh.shape, object)
    for device in np.ndindex(*mesh.shape):
        try:
            results[device] = np.asarray(
                compute([p[device] for p in pieces], [r[device] for r in rows])
            )
        except ValueError:  # pieces do not fit together
            return None
    if len({result.shape for result in results.flat}) > 1:
        return None
    stacked = np.stack(list(results.flat))
    return stacked.reshape(*mesh.shape, *stacked.shape[1:])


def _even(shape, mesh):
    for value in types.every(len(shape), len(mesh.axes)):
        try:
            types.piece_shape(shape, value, mesh)
        except ValueError:
            continue
        yield value


def _first(placed):
    """How the first dimension alone is held."""
    return types.NdSbp(one if one == S(0) else B for one in placed)


def inferred(operator, mesh):
    found = [(*way.operands, way.result) for way in signatures.on_mesh(operator, mesh.shape)]
    assert len({f[:-1] for f in found}) == len(found), "two results for the same operands"
    return set(found)


def integers(random, shape):
    return random.integers(-99, 100, shape)


def random_equation(random):
    """Up to three operands of up to three letters, now and then one twice; few in all."""
    letters = string.ascii_lowercase[: random.integers(1, 5)]
    terms = [
        "".join(random.choice(list(letters), random.integers(0, 4)))
        for _ in range(random.integers(1, 4))
    ]
    used = list(dict.fromkeys("".join(terms)))
    random.shuffle(used)
    return f"{','.join(terms)}->{''.join(used[: random.integers(0, len(used) + 1)])}"


def placements(equation, axes):
    terms = equation.replace("->", ",").split(",")
    return np.prod([(len(term) + 2.0) ** axes for term in terms])


def assert_einsum(equation, mesh, random):
    # Pieces of 2 and more: NumPy would broadcast a piece of 1.
    sizes = {letter: int(np.prod(mesh.shape)) * 2 for letter in string.ascii_lowercase}
    terms = equation.split("->")[0].split(",")
    operands = [integers(random, [sizes[letter] for letter in term]) for term in terms]
    trial = legal_by_trial(lambda p, _: np.einsum(equation, *p), operands, mesh)
    assert trial == inferred(Lettered(equation), mesh), equation


@pytest.mark.parametrize("mesh", MESHES)
def test_random_einsums(mesh):
    random = np.random.default_rng(len(mesh.axes) * 10 + mesh.shape[0])
    seen = set()
    while len(seen) < (40 if len(mesh.axes) == 1 else 15):
        equation = random_equation(random)
        if equation in seen or placements(equation, len(mesh.axes)) > 5000:
            continue
        seen.add(equation)
        assert_einsum(equation, mesh, random)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(
    "equation", ["ab,bc->ac", "ii->i", "ab->ba", "ab->", "ab,a->b", "a,a,a->a"]
)
def test_known_einsums(equation, mesh):
    assert_einsum(equation, mesh, np.random.default_rng(3))


def relu(x):
    return np.maximum(x, 0)


def normal(x, axis):
    e = np.exp(x / 99 - (x / 99).max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


TOGETHER, NOT = Linear.TOGETHER, Linear.NOT
OTHERS = {
    "add": (Lettered("ab,ab->ab", TOGETHER), lambda x, y: x + y, [(8, 4), (8, 4)]),
    "bias": (Lettered("ab,b->ab", TOGETHER), lambda x, y: x + y, [(8, 4), (4,)]),
    "relu": (Lettered("ab->ab", NOT), relu, [(8, 4)]),
    "maximum": (Lettered("ab,b->ab", NOT), np.maximum, [(8, 4), (4,)]),
    "softmax": (Lettered("ab->ab", NOT, "b"), lambda x: normal(x, 1), [(8, 4)]),
    "sum": (Lettered("ab->a"), lambda x: x.sum(1), [(8, 4)]),
    "mean": (Lettered("ab->b", whole="a"), lambda x: x.mean(0), [(8, 4)]),
    "max": (Lettered("ab->a", NOT, "b"), lambda x: x.max(1), [(8, 4)]),
    "min_of_all": (Lettered("a->", NOT, "a"), lambda x: x.min(), [(8,)]),
    "transpose": (Lettered("abc->cab"), lambda x: x.transpose(2, 0, 1), [(8, 4, 12)]),
}


@pytest.mark.parametrize("mesh", MESHES[::2])
@pytest.mark.parametrize("name", OTHERS)
def test_other_operators(name, mesh):
    operator, function, shapes = OTHERS[name]
    random = np.random.default_rng(5)
    operands = [integers(random, shape) for shape in shapes]
    trial = legal_by_trial(lambda p, _: function(*p), operands, mesh)
    assert trial == inferred(operator, mesh)


RESHAPES = [
    ((8, 12), (96,)),
    ((96,), (8, 12)),
    ((2, 3, 4), (6, 4)),
    ((2, 2, 3), (4, 3)),
    ((4, 3), (2, 2, 3)),
    ((1, 6), (6, 1)),
    ((2, 6), (3, 4)),
]


@pytest.mark.parametrize("mesh", [*MESHES, Mesh(("x", "y"), (2, 3))])
@pytest.mark.parametrize(("source", "target"), RESHAPES)
def test_reshape(source, target, mesh):
    """Pieces may be reshaped to pieces of the result of the same size."""
    array, trial = integers(np.random.default_rng(6), source), set()
    for placed, result in itertools.product(_even(source, mesh), _even(target, mesh)):
        pieces = cut(array, placed, mesh, np.random.default_rng(7))
        shape = types.piece_shape(target, result, mesh)
        if pieces[(0,) * len(mesh.axes)].size != np.prod(shape):
            continue
        try:
            whole = join(pieces.reshape(*mesh.shape, *shape), result, mesh)
        except AssertionError:  # copies differ
            continue
        if np.array_equal(whole, array.reshape(target)):
            trial.add((placed, result))
    assert trial == inferred(signatures.Reshape(source, target), mesh)


def test_inner_axes_cut_the_pieces_of_outer_ones():
    # Within the half that "data" leaves, 1 x 6, "model" may cut what is then the first dimension.
    ways = signatures.on_mesh(signatures.Reshape((2, 6), (12,)), (2, 3))
    assert ((parse("S(0),S(1)"),), parse("S(0),S(0)"), 6) in ways
    assert parse("B,S(1)") not in [operand for (operand,), *_ in ways]
