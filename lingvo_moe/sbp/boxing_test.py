import fractions
import itertools

import numpy as np
import pytest

from lingvo_moe.sbp import boxing, types
from lingvo_moe.sbp.types import Mesh, P, S, Sbp, parse
from lingvo_moe.testing.sbp import cut, join

LINE = Mesh(("x",), (4,))
GRID = Mesh(("x", "y"), (2, 3))
CUBE = Mesh(("x", "y", "z"), (2, 2, 2))


def move(pieces: np.ndarray, step: boxing.Step, mesh: Mesh) -> np.ndarray:
    """The step on the pieces of all devices, by NumPy, each collective by its definition.

    Args:
        pieces: [*mesh.shape, *piece_shape], held as step.source says.
        step: one step.
        mesh: the devices.

    Returns:
        The same tensor, held as step.target says.
    """
    axes = [mesh.axes.index(axis) for axis in step.axes]
    sizes = [mesh.shape[axis] for axis in axes]
    first = range(len(axes))
    grouped = np.moveaxis(pieces, axes, first)
    grouped = grouped.reshape(-1, *grouped.shape[len(axes) :])
    others = len(mesh.axes) - len(axes)  # so many axes lie before the pieces' own dimensions
    moved = _exchange(list(grouped), step.source[axes[0]], step.target[axes[0]], others)
    return np.moveaxis(np.stack(moved).reshape(*sizes, *moved[0].shape), first, axes)


def _exchange(held: list[np.ndarray], source: Sbp, target: Sbp, others: int) -> list[np.ndarray]:
    """What the devices of a group hold afterwards; all of a mesh's groups at once."""
    devices, zeros = len(held), [np.zeros_like(h) for h in held]
    cuts = isinstance(target, S)
    if isinstance(source, S):
        dim = others + source.dim
        if target == P:
            return [
                np.concatenate([*zeros[:i], h, *zeros[i + 1 :]], dim) for i, h in enumerate(held)
            ]
        if not cuts:
            return [np.concatenate(held, dim)] * devices
        sent = [np.split(h, devices, others + target.dim) for h in held]
        return [np.concatenate(slices, dim) for slices in zip(*sent, strict=True)]
    if source == P:
        total = sum(held)
        return np.split(total, devices, others + target.dim) if cuts else [total] * devices
    if target == P:
        return [held[0], *zeros[1:]]
    own = [np.split(h, devices, others + target.dim) for h in held]
    return [own[i][i] for i in range(devices)]


@pytest.mark.parametrize(
    ("source", "target", "kind", "received"),
    [  # n = 8 * 12 * 4 = 384 bytes, d = 4: the formulas by hand
        ("S(0)", "B", "all-gather", 288),  # 3/4 n
        ("S(0)", "S(1)", "all-to-all", 72),  # 3/16 n
        ("P", "B", "all-reduce", 576),  # 6/4 n
        ("P", "S(1)", "reduce-scatter", 288),  # 3/4 n
        ("B", "S(0)", "", 0),
        ("B", "P", "", 0),
        ("S(1)", "P", "", 0),
    ],
)
def test_table(source, target, kind, received):
    (step,) = boxing.plan(parse(source), parse(target), (8, 12), 4, LINE)
    assert (step.kind, step.received) == (kind, received)


@pytest.mark.parametrize(
    ("mesh", "shape"),
    [(LINE, (4, 8)), (GRID, (6, 12)), pytest.param(CUBE, (8,), marks=pytest.mark.slow)],
)
def test_every_pair_on_pieces(mesh, shape):
    random = np.random.default_rng(0)
    array = random.integers(-50, 50, shape)
    for source, target in itertools.product(types.every(len(shape), len(mesh.axes)), repeat=2):
        pieces = cut(array, source, mesh, random)
        for step in boxing.plan(source, target, shape, 4, mesh):
            assert step.source != step.target
            pieces = move(pieces, step, mesh)
            np.testing.assert_array_equal(join(pieces, step.target, mesh), array, str(step))
            source = step.target
        assert source == target


def test_every_single_step_on_pieces():
    random = np.random.default_rng(1)
    array = random.integers(-50, 50, (12, 6))
    for source in types.every(2, 2):
        for step in boxing.steps(source, array.shape, 4, GRID):
            pieces = move(cut(array, source, GRID, random), step, GRID)
            np.testing.assert_array_equal(join(pieces, step.target, GRID), array, str(step))


def test_inner_cut_is_undone_first():
    # (x, y) holds block 3x + y of six, 24 bytes each, and needs blocks 2y and 2y + 1, which are not
    # neighbours along x. Along y a device gathers the two others of its half: 48 bytes. Then only x
    # splits, so the half can be padded to a summand and a third of it sliced off, both locally. The
    # sum along x of 48 bytes between two devices receives 48 more: 96 in total. Gathering the whole
    # other half would receive 48 + 72.
    way = boxing.plan(parse("S(0),S(0)"), parse("B,S(0)"), (36,), 4, GRID)
    assert [(s.kind, s.received) for s in way if s.kind] == [("all-gather", 48), ("all-reduce", 48)]
    assert way[-1].target == parse("B,S(0)")


def test_several_axes_at_once():
    # One all-reduce of 6 devices, not one of 2 and one of 3: 2 * 5/6 n, n = 144.
    (step,) = boxing.plan(parse("P,P"), parse("B,B"), (36,), 4, GRID)
    assert (step.kind, step.axes, step.bytes, step.received) == ("all-reduce", ("x", "y"), 144, 240)


def test_other_axes_divide_what_travels():
    # x cuts the columns in two, so y's groups of three reduce half of 6 * 4 floats.
    (step,) = boxing.plan(parse("S(1),P"), parse("S(1),B"), (6, 4), 4, GRID)
    assert (step.axes, step.bytes, step.received) == (("y",), 48, 64)
    assert str(step) == "S(1),P → S(1),B: all-reduce over y, 48 bytes"


def test_no_way_of_few_steps_is_cheaper():
    shape = (6, 6)
    for source in itertools.islice(types.every(2, 2), 0, None, 3):
        cheapest = {source: fractions.Fraction(0)}
        for _ in range(3):
            for here, cost in list(cheapest.items()):
                for step in boxing.steps(here, shape, 4, GRID):
                    total = cost + step.received
                    cheapest[step.target] = min(total, cheapest.get(step.target, total))
        for target, cost in cheapest.items():
            way = boxing.plan(source, target, shape, 4, GRID)
            assert sum(step.received for step in way) <= cost
