"""Graphs of tensor operators, and the types of their tensors that cost least.

Yuan et al. 2021 (arXiv 2110.15032), section 3: each operator gets a signature, and boxing changes
the type of a tensor where an operator needs another one than it has.

    graph = Graph()
    x = graph.input("x", (64, 512), "S(0)")
    hidden = graph.einsum("BM,MH->BH", x, graph.input("w", (512, 2048)))
    graph.output(hidden, "S(0)")
    plan = search(graph, Mesh(("data",), (8,)))
    results = sbp.run.run(plan, {"x": …, "w": …})
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from lingvo_moe.sbp import boxing
from lingvo_moe.sbp.signatures import Lettered, Operator, Reshape, on_mesh
from lingvo_moe.sbp.types import Mesh, NdSbp, P, every, parse

_ELEMENT_BYTES = 4  # float32
_FEW = 30  # states of the search that gives a bound
_ROUNDING = 1e-9
_is_even = functools.cache(boxing.is_even)


class Device(NamedTuple):
    """The speed of a device, and of its links."""

    flops: float = 1e14  # a second
    bandwidth: float = 1e11  # bytes a second that it receives


_DEVICE = Device()


class Node(NamedTuple):
    """An input, an operator, or an output."""

    name: str  # of its result
    shape: tuple[int, ...]  # of its result
    operator: Operator | None = None  # None for an input
    operands: tuple[str, ...] = ()  # names
    compute: Callable | None = None  # pieces of operands -> piece of the result; not of a reshape
    flops: float = 0.0  # of the whole operator
    # of an input or an output: its type, or the name of an input of this type; None for any but P
    types: NdSbp | str | None = None
    is_output: bool = False  # whether it is a result of the graph


class Graph:
    """Operators in the order in which they were added.

    Attributes:
        nodes: name -> Node.
    """

    def __init__(self):
        """An empty graph."""
        self.nodes: dict[str, Node] = {}

    def input(self, name: str, shape: Sequence[int], sbp: str | None = None) -> str:
        """Adds a whole tensor that is given, such as a weight, of a type such as "S(0),B", or None
        to choose it; returns its name."""
        return self._add(Node(name, tuple(shape), types=None if sbp is None else parse(sbp)))

    def einsum(self, equation: str, *operands: str) -> str:
        """Adds a product, a transpose or a sum over dimensions; returns its name."""

        def compute(*pieces):
            import jax.numpy as jnp

            return jnp.einsum(equation, *pieces)

        return self.apply(Lettered(equation), compute, *operands)

    def apply(self, operator: Lettered, compute: Callable, *operands: str) -> str:
        """Adds any operator with letters, such as relu: Lettered("BH->BH", Linear.NOT); returns its
        name. `compute` takes and returns arrays in JAX, pieces or whole tensors."""
        terms, _, result = operator.equation.partition("->")
        shapes = (self.nodes[name].shape for name in operands)
        pairs = zip(terms.split(","), shapes, strict=True)
        sizes = {x: n for term, shape in pairs for x, n in zip(term, shape, strict=True)}
        flops = len(operands) * math.prod(sizes.values())
        shape = tuple(sizes[letter] for letter in result)
        return self._add(Node(self._name(), shape, operator, operands, compute, flops))

    def reshape(self, operand: str, shape: Sequence[int]) -> str:
        """Adds a row-major reshape; returns its name."""
        operator = Reshape(self.nodes[operand].shape, tuple(shape))
        return self._add(Node(self._name(), operator.target, operator, (operand,)))

    def output(self, operand: str, sbp: str | None = None, like: str | None = None) -> str:
        """Makes a tensor a result, of a given type, or of that of an input; returns its name."""
        letters = "".join(map(chr, range(97, 97 + len(self.nodes[operand].shape))))
        same = Lettered(f"{letters}->{letters}")
        types = like if sbp is None else parse(sbp)
        shape = self.nodes[operand].shape
        return self._add(
            Node(self._name(), shape, same, (operand,), lambda piece: piece, 0.0, types, True)
        )

    def _name(self):
        return f"v{len(self.nodes)}"

    def _add(self, node):
        if node.name in self.nodes:
            raise ValueError(f"Two tensors of the graph are called {node.name!r}; rename one.")
        self.nodes[node.name] = node
        return node.name


class Move(NamedTuple):
    """The boxing of an operand."""

    operand: str  # its name
    source: NdSbp
    target: NdSbp
    steps: tuple[boxing.Step, ...]  # from one to the other


class Choice(NamedTuple):
    """What happens at a node: first its operands move, then it is computed."""

    node: Node
    moves: tuple[Move, ...]
    result: NdSbp


@dataclasses.dataclass(frozen=True)
class Plan:
    """A graph's types on a mesh."""

    mesh: Mesh
    choices: tuple[Choice, ...]  # of each node, in order
    seconds: float  # predicted, of computing and communication, one after the other
    # whether it is known that no plan is cheaper: no states were dropped, and on a mesh of several
    # axes each tensor has one use
    exact: bool

    @property
    def types(self) -> dict[str, NdSbp]:
        """Name -> type, as the tensor is made or given."""
        return {choice.node.name: choice.result for choice in self.choices}

    @property
    def collectives(self) -> list[boxing.Step]:
        """All steps that communicate, in order."""
        steps = (s for choice in self.choices for move in choice.moves for s in move.steps)
        return [step for step in steps if step.kind]

    def explain(self) -> str:
        """A line for each node, and for each step of boxing before it; bytes and seconds."""
        lines = []
        for node, moves, result in self.choices:
            lines += [f"    {m.operand}: {step}" for m in moves for step in m.steps if step.kind]
            what = f" = {node.operator} of {', '.join(node.operands)}" if node.operator else ""
            lines.append(f"{node.name} {node.shape} {result}{what}")
        received = sum(float(step.received) for step in self.collectives)
        return "\n".join([*lines, f"{received:,.0f} bytes received, {self.seconds:.3g} s"])


_State = tuple[tuple[str, tuple[NdSbp, ...]], ...]


class _Reached(NamedTuple):
    """How a state was reached: the cost, and the choices as a linked list, the last one first."""

    cost: tuple[float, float, int]  # seconds, bytes received, steps
    choices: Any


def search(graph: Graph, mesh: Mesh, device: Device = _DEVICE, width: int = 5000) -> Plan:
    """The cheapest types, by dynamic programming over the operators in their order.

    A state: the types that are there of each tensor that is still needed; an input joins when it is
    first needed. A chain or a tree has few states. Other graphs may have many: a first search that
    keeps few states gives a bound, and a state that cannot come below it is left out. If there are
    still more than `width`, only the cheapest are kept, and the plan may not be the best. It may
    also miss the best on a mesh of several axes if a tensor has several uses: the move to each use
    is chosen by itself, in the order of the uses. Raises ValueError: a tensor has no type that
    divides it into equal pieces.
    """
    found = _search(graph, mesh, device, min(width, _FEW), math.inf)
    if not found.exact:
        found = _search(graph, mesh, device, width, found.seconds) or found
    uses = [name for node in graph.nodes.values() for name in node.operands]
    alone = len(mesh.axes) == 1 or len(set(uses)) == len(uses)
    return dataclasses.replace(found, exact=found.exact and alone)


def _search(graph, mesh, device, width, bound):
    """As `search`, without plans that take more than `bound` seconds; None if none is found."""
    nodes, exact = _order(graph), True
    last, left = _last_uses(nodes), sum(node.flops for node in nodes)
    states: dict[_State, _Reached] = {(): _Reached((0.0, 0.0, 0), None)}
    for place, node in enumerate(nodes):
        left -= node.flops
        least = left / math.prod(mesh.shape) / device.flops  # seconds of the nodes that follow
        found: dict[_State, _Reached] = {}
        for state, reached in states.items():
            for choice, cost, had in _choices(node, graph, dict(state), mesh, device):
                seconds, received, steps = map(sum, zip(reached.cost, cost, strict=True))
                if (seconds + least) * (1 - _ROUNDING) > bound:
                    continue
                live = tuple((name, types) for name, types in had.items() if last[name] > place)
                total = seconds, received, steps
                if live not in found or total < found[live].cost:
                    found[live] = _Reached(total, (choice, reached.choices))
        if not found and bound < math.inf:
            return None
        if not found:
            raise ValueError(f"No type of {node.name!r} {node.shape} fits {mesh}; change one.")
        kept = _not_worse(found)
        exact = exact and len(kept) <= width
        states = dict(kept[:width])
    best = min(states.values(), key=lambda reached: reached.cost)
    choices, rest = {}, best.choices
    while rest:
        choices[rest[0].node.name] = rest[0]
        rest = rest[1]
    return Plan(mesh, tuple(choices[name] for name in graph.nodes), best.cost[0], exact)


def _needed(node):
    """Names of the tensors whose types a node depends on."""
    return (*node.operands, *([node.types] if isinstance(node.types, str) else []))


def _order(graph):
    """The nodes in their order, but each input directly before the first node that needs it."""
    order: dict[str, Node] = {}
    for node in graph.nodes.values():
        if node.operator:
            needed = {name: graph.nodes[name] for name in _needed(node)}
            order |= {name: one for name, one in needed.items() if name not in order}
            order[node.name] = node
    return list((order | graph.nodes).values())


def _not_worse(found):
    """The states, cheapest first, without those that a cheaper one covers: it has all their types.

    States are compared only if their tensors were made in the same types.
    """
    kept, same = [], collections.defaultdict[Any, list](list)
    for state, reached in sorted(found.items(), key=lambda item: item[1].cost):
        has = [set(types) for _, types in state]
        cheaper = same[tuple((name, types[0]) for name, types in state)]
        if not any(all(map(set.issubset, has, other)) for other in cheaper):
            cheaper.append(has)
            kept.append((state, reached))
    return kept


def _last_uses(nodes):
    """Name -> the place of the last node that needs it."""
    last = {node.name: -1 for node in nodes}
    for place, node in enumerate(nodes):
        for name in _needed(node):
            last[name] = place
    return last


def _choices(node, graph, had, mesh, device):
    """(Choice, its cost, name -> types afterwards) of all ways to make a node.

    Of the types of a tensor in `had` the first is the one in which it was made.
    """
    wanted = had[node.types][0] if isinstance(node.types, str) else node.types
    for operands, result, share in _ways(node, mesh):
        if wanted not in (None, result) or not _is_even(node.shape, result, mesh):
            continue
        now, moves = dict(had), []
        for name, target in zip(node.operands, operands, strict=True):
            if not _is_even(graph.nodes[name].shape, target, mesh):
                break
            moves.append(_cheapest(name, now[name], target, graph.nodes[name].shape, mesh))
            passed = {step.target for step in moves[-1].steps} - {now[name][0]}
            now[name] = (now[name][0], *sorted({*now[name][1:], *passed}, key=str))
        else:
            steps = [step for move in moves for step in move.steps]
            received = sum(float(step.received) for step in steps)
            seconds = node.flops / share / device.flops + received / device.bandwidth
            now[node.name] = (result,)
            yield Choice(node, tuple(moves), result), (seconds, received, len(steps)), now


def _ways(node, mesh) -> Iterator[tuple[tuple[NdSbp, ...], NdSbp, int]]:
    """(Types of the operands, type of the result, number of pieces of the work) of a node."""
    if node.operator is None:
        given = every(len(node.shape), len(mesh.axes)) if node.types is None else [node.types]
        return (((), sbp, 1) for sbp in given if P not in sbp)
    ways = on_mesh(node.operator, mesh.shape)
    return (way for way in ways if not (node.is_output and P in way.result))


def _cheapest(name, types, target, shape, mesh) -> Move:
    """The cheapest Move of a tensor from one of its types to another one."""
    ways = ((_boxing(source, target, shape, mesh), source) for source in types)
    (_, steps), source = min(ways, key=lambda way: (way[0][0], len(way[0][1])))
    return Move(name, source, target, steps)


@functools.cache
def _boxing(source, target, shape, mesh):
    """(Bytes received, steps) of the cheapest boxing."""
    steps = boxing.plan(source, target, shape, _ELEMENT_BYTES, mesh)
    return sum(step.received for step in steps), steps
