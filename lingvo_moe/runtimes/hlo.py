"""Reads the collectives of a compiled program from its HLO text.

The text is the result of `compiled.as_text()` in JAX: one program for all devices, so shapes are
those of one device's piece.
"""

import ast
import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
_BITS = {"pred": 8, "token": 0, "opaque": 0}  # other types have their bits in the name: bf16, s4

_KINDS = "|".join(KINDS)
_COLLECTIVE = re.compile(rf" = (?P<shape>.*?) (?P<kind>{_KINDS})(?P<start>-start)?\((?P<rest>.*)")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,<=]*)\]")
_GROUPS = re.compile(
    r"(?:replica_groups|source_target_pairs)="
    r"(mesh\[[^\]]*\][^{]*\{[^}]*\}|\{(?:\{[\d,]*\},?)*\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)"
)
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.$-]+) .*\{$")
_CALLS = re.compile(r"(?:body|condition|to_apply|calls|async_computation)=%?([\w.$-]+)")
_BRANCHES = re.compile(r"(?:branch|called)_computations=\{([^}]*)\}")
_CONDITION = re.compile(r"condition=%?([\w.$-]+)")
_BELOW = re.compile(r"^  ROOT .*compare\([^,]*, (?:s32\[\]\S* )?%?([\w.$-]+)\), direction=LT")
_LIMIT = re.compile(r"^  %?([\w.$-]+) = s32\[\]\S* constant\((\d+)\)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective instruction of a compiled program."""

    kind: str  # one of KINDS
    # the larger of a device's operand and result: for an all-gather the whole gathered array, for
    # an all-to-all the device's piece
    bytes: int
    # partitions that communicate; pairs (source, target) of a collective-permute; () for all
    groups: tuple[tuple[int, ...], ...]
    op_name: str  # the operation of the model for which the partitioner inserted it
    times: int = 1  # number of executions in a run; more than 1 in loops of known length


def collectives(text: str) -> list[Collective]:
    """Every collective of a program, in the order of the text.

    Args:
        text: a compiled module, after partitioning.

    Raises:
        ValueError: replica groups in an unknown notation.
    """
    computations = _computations(text)
    times = _executions(computations)
    return [
        collective
        for name, lines in computations.items()
        for line in lines
        if (collective := _parse(line, times[name]))
    ]


def count(found: Iterable[Collective]) -> dict[str, int]:
    """Kind -> number of executions in a run, for the kinds that occur."""
    return {kind: sum(c.times for c in same) for kind, same in _by_kind(found)}


def total_bytes(found: Iterable[Collective]) -> dict[str, int]:
    """Kind -> bytes of a device in a run, for the kinds that occur."""
    return {kind: sum(c.bytes * c.times for c in same) for kind, same in _by_kind(found)}


def _by_kind(found: Iterable[Collective]) -> Iterator[tuple[str, list[Collective]]]:
    found = list(found)
    for kind in KINDS:
        if same := [c for c in found if c.kind == kind]:
            yield kind, same


def _computations(text: str) -> dict[str, list[str]]:
    """Computation -> its instructions; XLA prints the entry computation last."""
    computations: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if not line.startswith(" ") and (match := _COMPUTATION.match(line)):
            current = computations.setdefault(match[1], [])
        elif line.startswith(" "):
            current.append(line)
    return computations


def _executions(computations: Mapping[str, list[str]]) -> dict[str, int]:
    """Computation -> number of executions; XLA prints callers after the called computations."""
    times = dict.fromkeys(computations, 0)
    if times:
        times[next(reversed(times))] = 1
    for name in reversed(list(computations)):
        for line in computations[name]:
            trips = _trips(line, computations)
            for callee in _callees(line):
                if callee in times:
                    times[callee] += times[name] * trips
    return times


def _trips(line: str, computations: Mapping[str, list[str]]) -> int:
    """How often an instruction runs the computation that it calls: once, except in loops.

    For CPUs and GPUs XLA writes the length of a loop. For TPUs it is read from the condition: a
    counter, which starts at 0 and counts up by 1 as in our loops, is below a constant.
    """
    if noted := _TRIPS.search(line):
        return int(noted[1])
    condition = _CONDITION.search(line)
    instructions = computations.get(condition[1], []) if condition else []
    below = [match for instruction in instructions if (match := _BELOW.search(instruction))]
    limits = {m[1]: m[2] for i in instructions if (m := _LIMIT.search(i))}
    return int(limits[below[0][1]]) if below and below[0][1] in limits else 1


def _callees(line: str) -> list[str]:
    lists = (names.split(",") for names in _BRANCHES.findall(line))
    return _CALLS.findall(line) + [name.strip().lstrip("%") for names in lists for name in names]


def _parse(line: str, times: int) -> Collective | None:
    match = _COLLECTIVE.search(line)
    if not match:
        return None
    groups = _parse_groups(line)
    result = match["shape"]
    if match["start"] and match["kind"] in ("all-gather", "collective-permute"):
        result = _elements(result)[1]  # (operands, results, …)
    size = _size(result)
    if match["kind"] == "reduce-scatter" and groups:
        size *= len(groups[0])
    op_name = re.search(r'op_name="([^"]*)"', line)
    return Collective(
        kind=match["kind"],
        bytes=size,
        groups=groups,
        op_name=op_name[1] if op_name else "",
        times=times,
    )


def _elements(shape: str) -> list[str]:
    """The elements of a tuple's shape: "((f32[2], s8[]), u32[])" -> ["(f32[2], s8[])", "u32[]"]."""
    elements, depth, start = [], 0, 1
    for i, char in enumerate(shape):
        depth += (char in "([{") - (char in ")]}")
        if (char == "," and depth == 1) or (char == ")" and depth == 0):
            elements.append(shape[start:i].strip())
            start = i + 1
    return elements


def _size(shape: str) -> int:
    """Bytes of an array or of all arrays of a tuple."""
    layout_free = re.sub(r"\{[^}]*\}", "", shape)
    return sum(
        math.prod(int(n.lstrip("<=")) for n in dims.split(",") if n) * _bits(dtype) // 8
        for dtype, dims in _ARRAY.findall(layout_free)
    )


def _bits(dtype: str) -> int:
    return _BITS[dtype] if dtype in _BITS else int(re.findall(r"\d+", dtype)[0])


def _parse_groups(line: str) -> tuple[tuple[int, ...], ...]:
    match = _GROUPS.search(line)
    if match:
        return _groups(match[1])
    if "replica_groups=" in line:
        start = line.index("replica_groups=")
        raise ValueError(f"Unknown notation of replica groups: {line[start : start + 80]!r}.")
    return ()


@functools.cache
def _groups(text: str) -> tuple[tuple[int, ...], ...]:
    """Groups from any of XLA's three notations.

    A list, {{0,1},{2,3}}; an iota, [2,2]<=[4] or [2,2]<=[2,2]T(1,0): the numbers 0, 1, … in the
    shape on the right, transposed, reshaped to groups; or a mesh, mesh['a'=2,'b'=4] {'b'}: a group
    for each place on the axes not named in braces. The mesh's devices are 0, 1, … in row-major
    order or, after device_ids=, in an iota's, or a list (7,5,3,1).
    """
    if text.startswith("{"):
        return tuple(tuple(map(int, g.split(","))) for g in re.findall(r"\{([\d,]+)\}", text))
    if text.startswith("["):
        numbers = [[int(n) for n in part.split(",")] for part in re.findall(r"[\d,]*\d", text)]
        shape, source, *transpose = numbers
        devices = np.arange(math.prod(source)).reshape(source)
        return _rows(devices.transpose(*transpose).reshape(shape))
    axes = dict(re.findall(r"'([^']*)'=(\d+)", text[: text.index("]")]))
    split = re.fullmatch(
        r"mesh\[[^\]]*\](?:, device_ids=\((?:\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))\))?"
        r" \{((?:'[^']*',? ?)*)\}",
        text,
    )
    if not split:
        raise ValueError(f"Unknown notation of replica groups: {text!r}.")
    names = list(ast.literal_eval(f"[{split[4]}]"))
    order = [name for name in axes if name not in names] + names
    devices = np.arange(math.prod(map(int, axes.values())))
    if split[3]:
        devices = np.array(split[3].split(","), int)
    elif split[1]:
        devices = devices.reshape([int(n) for n in split[1].split(",")])
        devices = devices.transpose([int(n) for n in split[2].split(",")]) if split[2] else devices
    devices = devices.reshape([*map(int, axes.values())])
    devices = devices.transpose([list(axes).index(name) for name in order])
    return _rows(devices.reshape(-1, math.prod(int(axes[name]) for name in names)))


def _rows(groups: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, groups.tolist()))
