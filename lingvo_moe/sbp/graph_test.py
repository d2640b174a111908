"""Plans of graphs compared with all plans, and executed; runs itself where JAX has 16 devices."""

import functools
import json
import sys

import numpy as np
import pytest

from lingvo_moe.sbp import boxing, types
from lingvo_moe.sbp.graph import Device, Graph, search
from lingvo_moe.sbp.signatures import Lettered, Linear
from lingvo_moe.sbp.types import Mesh
from lingvo_moe.testing.devices import run_on

DEVICE = Device(flops=1e12, bandwidth=1e9)
FOUR, EIGHT = Mesh(("x",), (4,)), Mesh(("x",), (8,))
SQUARE, HALF, LARGE = (Mesh(("x", "y"), shape) for shape in ((2, 2), (2, 4), (4, 4)))


def relu(graph, x, letters):
    return graph.apply(
        Lettered(f"{letters}->{letters}", Linear.NOT), lambda x: x * (x > 0), x
    )  # fmt: skip


def relu_gradient(graph, gradient, x, letters):
    operator = Lettered(f"{letters},{letters}->{letters}", Linear.NOT)
    return graph.apply(operator, lambda dy, x: dy * (x > 0), gradient, x)


def difference(graph, x, y):
    return graph.apply(Lettered("ab,ab->ab", Linear.TOGETHER), lambda x, y: x - y, x, y)


def late_sum():
    """Y = U·V·W, where U·V is larger than Y."""
    graph = Graph()
    u, v = graph.input("u", (64, 512), "S(1)"), graph.input("v", (512, 256), "S(0)")
    product = graph.einsum("ab,bc->ac", u, v)
    graph.output(graph.einsum("ac,cd->ad", product, graph.input("w", (256, 16), "B")), "B")
    return graph


def feed_forward():
    """A training step of a wide network on few tokens."""
    graph = Graph()
    x, t = graph.input("x", (8, 64), "B"), graph.input("t", (8, 64), "B")
    wi, wo = graph.input("wi", (64, 4096)), graph.input("wo", (4096, 64))
    hidden = graph.einsum("BM,MH->BH", x, wi)
    active = relu(graph, hidden, "BH")
    y = graph.einsum("BH,HM->BM", active, wo)
    dy = difference(graph, y, t)
    graph.output(graph.einsum("BH,BM->HM", active, dy), like="wo")
    dh = relu_gradient(graph, graph.einsum("BM,HM->BH", dy, wo), hidden, "BH")
    graph.output(graph.einsum("BM,BH->MH", x, dh), like="wi")
    graph.output(y, "B")
    return graph


def convolution_then_dense():
    """A training step: a convolution as a product of patches, then a large dense layer."""
    graph, rows = Graph(), 64
    x, t = graph.input("x", (rows, 64, 288), "S(0)"), graph.input("t", (rows, 1024), "S(0)")
    kernel = graph.input("kernel", (288, 32), "B")
    dense = graph.input("dense", (2048, 1024))
    hidden = graph.einsum("bpk,kc->bpc", x, kernel)
    flat = graph.reshape(relu(graph, hidden, "bpc"), (rows, 2048))
    dy = difference(graph, graph.einsum("bf,fg->bg", flat, dense), t)
    graph.output(graph.einsum("bf,bg->fg", flat, dy), like="dense")
    back = graph.reshape(graph.einsum("bg,fg->bf", dy, dense), (rows, 64, 32))
    dh = relu_gradient(graph, back, hidden, "bpc")
    graph.output(graph.einsum("bpk,bpc->kc", x, dh), like="kernel")
    return graph


def square_product():
    graph = Graph()
    a, b = (graph.input(name, (64, 64), "S(0),S(1)") for name in "ab")
    graph.output(graph.einsum("ab,bc->ac", a, b), "S(0),S(1)")
    return graph


def momentum():
    """An optimizer's step on data that are split by rows; its state m has any type."""
    graph = Graph()
    x, dy = graph.input("x", (8192, 256), "S(0)"), graph.input("dy", (8192, 64), "S(0)")
    m, w = graph.input("m", (256, 64)), graph.input("w", (256, 64), "B")
    gradient = graph.einsum("ba,bc->ac", x, dy)
    sums = Lettered("ab,ab->ab", Linear.TOGETHER)
    new = graph.apply(sums, lambda m, g: 0.9 * m + 0.1 * g, m, gradient)
    update = graph.apply(Lettered("ab->ab", Linear.NOT), lambda m: m / (1 + abs(m)), new)
    graph.output(new, like="m")
    graph.output(difference(graph, w, update), "B")
    return graph


# Name -> graph, mesh, some of the types, and kind and bytes of the collectives, all by hand.
PROGRAMS = {
    "one late sum": (late_sum, FOUR, {"v2": "P", "v4": "P"}, [("all-reduce", 64 * 16 * 4)]),
    "columns then rows": (
        feed_forward, EIGHT, {"wi": "S(1)", "wo": "S(0)"}, [("all-reduce", 8 * 64 * 4)],
    ),
    "data parallel, then model parallel": (
        convolution_then_dense, FOUR, {"v4": "S(0)", "dense": "S(0)"},
        [("all-to-all", 64 * 2048), ("reduce-scatter", 64 * 1024 * 4),
         ("all-gather", 64 * 1024 * 4), ("all-to-all", 64 * 2048), ("all-reduce", 288 * 32 * 4)],
    ),
    "two dimensions": (
        square_product, SQUARE, {}, [("all-gather", 64 * 32 * 4)] * 2
    ),
    "two dimensions of four": (
        square_product, LARGE, {}, [("all-gather", 64 * 16 * 4)] * 2
    ),
    "states split": (
        momentum, EIGHT, {"m": "S(0)"},
        [("reduce-scatter", 256 * 64 * 4), ("all-gather", 256 * 64 * 4)],
    ),
}  # fmt: skip


# Each of them runs on four and on eight devices.
RUNS = [
    (name, mesh)
    for name, (_, own, *_) in PROGRAMS.items()
    for mesh in ((FOUR, EIGHT) if len(own.axes) == 1 else (own, HALF))
]


@functools.cache
def plan_of(name, mesh):
    return search(PROGRAMS[name][0](), mesh, DEVICE)


@pytest.mark.parametrize("name", PROGRAMS)
def test_known_programs_are_found(name):
    _, mesh, wanted, sent = PROGRAMS[name]
    plan = plan_of(name, mesh)
    assert plan.exact or len(mesh.axes) > 1
    assert {n: str(plan.types[n]) for n in wanted} == wanted, plan.explain()
    assert [(step.kind, step.bytes) for step in plan.collectives] == sent
    assert "bytes received" in plan.explain()


def test_programs_run_as_planned():
    for (name, mesh), (error, sent) in zip(RUNS, run_on(16, __file__), strict=True):
        assert error < 1e-5, (name, mesh)
        planned = sorted([s.kind, s.bytes] for s in plan_of(name, mesh).collectives)
        assert sorted(sent) == planned, (name, mesh)


def random_graph(random):
    """A chain with at most six operators, with values that are used twice now and then."""
    graph, sizes = Graph(), [4, 8, 12]
    shape = tuple(random.choice(sizes, 2))
    values = [graph.input("x", shape, random.choice(["S(0)", "S(1)", "B"]))]
    for number in range(random.integers(1, 6)):
        x = values[-1]
        rows, columns = graph.nodes[x].shape
        kind = random.integers(5)
        if kind < 2:
            given = random.choice([None, "S(0)", "B"])
            w = graph.input(f"w{number}", (columns, random.choice(sizes)), given)
            values.append(graph.einsum("ab,bc->ac", x, w))
        elif kind == 2:
            values.append(relu(graph, x, "ab"))
        elif kind == 3:
            values.append(graph.einsum("ab->ba", x))
        else:
            same = [v for v in values if graph.nodes[v].shape == (rows, columns)]
            both = Lettered("ab,ab->ab", Linear.TOGETHER)
            values.append(graph.apply(both, lambda x, y: x + y, x, same[0]))
    graph.output(values[-1], random.choice(["S(0)", "B"]))
    return graph


def least_seconds(graph, mesh):
    """The smallest predicted time of all plans, by trying each."""
    nodes, (size,) = list(graph.nodes.values()), mesh.shape

    def fits(shape, one):
        return not isinstance(one, types.Split) or shape[one.dim] % size == 0

    def move(name, target, had):
        """The bytes that an operand's boxing receives."""
        ways = (
            boxing.plan(
                types.NdSbp([source]), types.NdSbp([target]), graph.nodes[name].shape, 4, mesh
            )
            for source in had[name]
        )
        return min(float(sum(step.received for step in steps)) for steps in ways)

    def best(place, had, bound):
        """Seconds from this node on, at most `bound`."""
        if place == len(nodes):
            return 0.0
        node = nodes[place]
        if node.operator is None:
            given = [types.S(0), types.S(1), types.B] if node.types is None else [node.types[0]]
            ways = [((), one) for one in given]
        else:
            ways = node.operator.signatures(size)
        for operands, result in ways:
            if node.is_output and result != node.types[0]:
                continue
            pairs, now, received = list(zip(node.operands, operands, strict=True)), dict(had), 0.0
            if not fits(node.shape, result):
                continue
            if not all(fits(graph.nodes[name].shape, one) for name, one in pairs):
                continue
            for name, one in pairs:
                received += move(name, one, now)
                now[name] = now[name] | {one}
            split = any(isinstance(one, types.Split) for one in operands)
            seconds = node.flops / (size if split else 1) / DEVICE.flops
            seconds += received / DEVICE.bandwidth
            if seconds < bound:
                rest = best(place + 1, now | {node.name: {result}}, bound - seconds)
                bound = min(bound, seconds + rest)
        return bound

    return best(0, {}, float("inf"))


@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 200), marks=pytest.mark.slow)]
)  # fmt: skip
def test_the_plan_is_the_best_of_all(seeds):
    for seed in seeds:
        graph = random_graph(np.random.default_rng(seed))
        plan = search(graph, FOUR, DEVICE)
        assert plan.exact
        assert plan.seconds == pytest.approx(least_seconds(graph, FOUR), rel=1e-9), seed


@pytest.mark.parametrize("first", [0, 1])
def test_a_type_on_the_way_to_another_is_kept(first):
    """From S(0),S(0) by way of S(1),S(1) to S(1),S(0)."""
    graph, wanted = Graph(), ("S(1),S(0)", "S(1),S(1)")
    x = graph.input("x", (8, 8), "S(0),S(0)")
    for place in (first, 1 - first):
        graph.output(x, wanted[place])
    plan = search(graph, Mesh(("a", "b"), (2, 2)), DEVICE)
    assert sum(float(step.received) for step in plan.collectives) == 80
    assert not plan.exact


def chain(weights_first):
    """Eight products of data that are split by rows."""
    graph, names = Graph(), [f"w{i}" for i in range(8)]
    x = graph.input("x", (65536, 256), "S(0)")
    if weights_first:
        for name in names:
            graph.input(name, (256, 256))
    for name in names:
        x = graph.einsum("ab,bc->ac", x, name if weights_first else graph.input(name, (256, 256)))
    graph.output(x, "S(0)")
    return graph


def test_a_chain_with_its_weights_first_is_exact():
    plan, other = (search(chain(first), FOUR, DEVICE) for first in (True, False))
    assert plan.exact
    assert (plan.seconds, plan.collectives) == (other.seconds, [])
    assert list(plan.types)[:2] == ["x", "w0"]


def main():
    """Prints for each of RUNS the largest relative error, and kind and bytes of collectives."""
    from lingvo_moe.runtimes import hlo
    from lingvo_moe.sbp.run import program

    found = []
    for run in RUNS:
        plan, random = plan_of(*run), np.random.default_rng(0)
        nodes = [choice.node for choice in plan.choices]
        given = [
            random.standard_normal(n.shape).astype(np.float32) for n in nodes if not n.operator
        ]
        compiled = program(plan).lower(*given).compile()
        sent = [(c.kind, c.bytes) for c in hlo.collectives(compiled.as_text())]
        values = dict(zip((n.name for n in nodes if not n.operator), given, strict=True))
        for node in nodes:
            if node.operator:
                operands = [values[n] for n in node.operands]
                whole = node.compute(*operands) if node.compute else operands[0]
                values[node.name] = np.reshape(np.asarray(whole), node.shape)
        wanted = [values[node.name] for node in nodes if node.is_output]
        pairs = zip(program(plan)(*given), wanted, strict=True)
        errors = [np.abs(np.asarray(one) - two).max() / np.abs(two).max() for one, two in pairs]
        found.append((float(max(errors)), sent))
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
