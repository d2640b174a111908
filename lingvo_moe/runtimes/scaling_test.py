"""GShard's Table 4 in compiled programs: costs of an operator a device for more devices.

Runs itself in separate processes with virtual devices. A dimension that grows in the table has N
elements a device, the others N in total. As a script it prints a table, with Figure 2 at its end:

    python -m lingvo_moe.runtimes.scaling_test > benchmarks/results/partitioned_operators.csv
"""

import csv
import functools
import json
import sys
import time
from typing import Any, NamedTuple

import pytest
import tensorflow as tf

from lingvo_moe.testing.devices import run_on

N = 8
ONE, LINEAR = 0, 1  # O(D^0), O(D^1)
ONE_FOR_ALL, EACH = "matmul, B", "matmul, B, a program for each device"


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        operands, result: (shape, dims); the dimension lettered D is cut over all devices.
        function: of the operands.
        compute: the order of FLOPs per device.
        collectives: the kinds that may stand in the program, at least one of which must.
        bytes: the order of what a device sends.
    """

    operands: list[tuple[tuple[int, ...], str]]
    result: tuple[tuple[int, ...], str]
    function: Any
    compute: int
    collectives: tuple[str, ...] = ()
    bytes: int = ONE


def table(d: int) -> dict[str, Row]:
    """The rows for D = d devices."""
    big, capacity = N * d, 64 // d  # the dispatch mask has 64 = E·C columns
    return {
        "add, A": Row([((big,), "D")] * 2, ((big,), "D"), tf.add, ONE),
        "matmul, B": Row(
            [((N, big), ".D"), ((big, N), "D.")], ((N, N), ".."), tf.matmul, ONE, ("all-reduce",)
        ),
        "matmul, A": Row([((big, N), "D."), ((N, N), "..")], ((big, N), "D."), tf.matmul, ONE),
        "matmul, A and B": Row(
            [((big, big), "D."), ((big, N), "D.")],
            ((big, N), "D."),
            tf.matmul,
            LINEAR,
            ("all-gather", "collective-permute"),
            LINEAR,
        ),
        "matmul, A and C": Row(
            [((big, N), "D."), ((N, big), ".D")],
            ((big, big), "D."),
            tf.matmul,
            LINEAR,
            ("all-gather", "collective-permute"),
            LINEAR,
        ),
        "reduce AB to A, A": Row(
            [((big, N), "D.")], ((big,), "D"), lambda x: tf.reduce_sum(x, 1), ONE
        ),
        "reduce AB to B, A": Row(
            [((big, N), "D.")], ((N,), "."), lambda x: tf.reduce_sum(x, 0), ONE, ("all-reduce",)
        ),
        # E·C is fixed, as in an MoE layer. A device sends O(1) bytes; the table's √D is the time on
        # a torus, where messages share links.
        "dispatch, G and E": Row(
            [((d, N, d, capacity), "D..."), ((d, N, N), "D..")],
            ((d, d, capacity, N), "D..."),
            lambda mask, x: tf.einsum("GSEC,GSM->EGCM", mask, x),
            ONE,
            ("all-to-all",),
        ),
        "convolution, X": Row(
            [((1, 4, big, N), "..D."), ((N, N, 3, 3), "....")],
            ((1, 4, big, N), "..D."),
            lambda x, w: tf.nn.conv2d(x, tf.transpose(w, [2, 3, 0, 1]), 1, "SAME"),
            ONE,
            ("collective-permute",),
        ),
    }


@functools.cache
def measured(d):
    """Row -> {"flops": a device, "kinds": names of collectives, "bytes": their sum}."""
    return run_on(d, __file__, str(d))


@pytest.mark.parametrize(
    ("few", "many"), [(2, 8), pytest.param(16, 64, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("name", table(2))
def test_table_4(name, few, many):
    row, before, after = table(2)[name], measured(few)[name], measured(many)[name]
    growth = many / few
    assert after["flops"] / before["flops"] == pytest.approx(growth**row.compute, rel=0.02)
    assert set(after["kinds"]) <= set(row.collectives)
    assert bool(after["kinds"]) == bool(row.collectives)
    if row.collectives:
        assert after["bytes"] / before["bytes"] == pytest.approx(growth**row.bytes, rel=0.02)


def test_one_program_for_all_devices_does_not_grow():
    """Figure 2: with a program for each device, operators grow faster than D."""
    one, each = ([measured(d)[name]["operators"] for d in (2, 8)] for name in (ONE_FOR_ALL, EACH))
    assert one[0] == one[1]
    assert each[1] >= 8 * each[0]


def compiled(function, args, results, layout):
    """The program, with its operators before partitioning, and the seconds to compile it."""
    from lingvo_moe.runtimes.lowering import partitioned, shapes

    lowered = partitioned(function, args, results, layout).lower(*shapes(args))
    start = time.perf_counter()
    program = lowered.compile()
    seconds = time.perf_counter() - start
    return program, lowered.as_text().count(" = stablehlo."), seconds


def sum_by_device(operands):
    """A contraction over D devices, written for each: its product, and its sum of all products."""
    products = [tf.matmul(operands[f"a{i}"], operands[f"b{i}"]) for i in range(len(operands) // 2)]
    first = [functools.reduce(tf.add, products[i:] + products[:i]) for i in range(len(products))]
    return {f"{i}": one for i, one in enumerate(first)}


def main(d):
    """Compiles every row for d devices and prints what it costs."""
    from lingvo_moe.runtimes.hlo import collectives, count
    from lingvo_moe.runtimes.lowering import ArraySpec, Layout
    from lingvo_moe.sbp.params import ShardingParams
    from lingvo_moe.sbp.types import Mesh

    layout = Layout(Mesh(("all",), (d,)), ShardingParams(rules=(("D", ("all",)),)))
    report = {}
    for name, row in table(d).items():
        args = [{f"{i}": ArraySpec(s, "float32", dims) for i, (s, dims) in enumerate(row.operands)}]

        def run(operands, row=row):
            return {"result": row.function(*(value for _, value in sorted(operands.items())))}

        results = {"result": ArraySpec(row.result[0], "float32", row.result[1])}
        program, operators, seconds = compiled(run, args, results, layout)
        found = collectives(program.as_text())
        report[name] = {
            "flops": program.cost_analysis()["flops"],
            "kinds": count(found),
            "bytes": sum(c.bytes * c.times for c in found),
            "operators": operators,
            "seconds": seconds,
        }
    piece = ArraySpec((N, N), "float32", "..")
    args = [{f"{name}{i}": piece for name in "ab" for i in range(d)}]
    _, operators, seconds = compiled(sum_by_device, args, {f"{i}": piece for i in range(d)}, layout)
    report[EACH] = {"operators": operators, "seconds": seconds}
    print(json.dumps(report))


def print_table():
    """Prints a line for each operator and number of devices."""
    out = csv.writer(sys.stdout)
    names = ("operator", "devices", "FLOPs of a device", "collectives", "bytes of a device")
    out.writerow([*names, "operators before partitioning", "seconds to compile"])
    reports = {d: measured(d) for d in (2, 4, 8, 16, 32, 64)}
    for name in [*table(2), EACH]:
        for d, report in reports.items():
            one = report[name]
            kinds = " ".join(f"{kind} {n}" for kind, n in one.get("kinds", {}).items())
            costs = [one.get("flops", ""), kinds, one.get("bytes", "")]
            out.writerow([name, d, *costs, one["operators"], f"{one['seconds']:.2f}"])


if __name__ == "__main__":
    if sys.argv[1:]:
        main(int(sys.argv[1]))
    else:
        print_table()
