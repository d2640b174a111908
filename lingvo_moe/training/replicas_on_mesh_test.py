"""What a compiled sum over replicas sends: one gradient of each expert on several devices."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.nn.layer import Constant, WeightSpec
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tables import Fixed, TableSpec
from lingvo_moe.runtimes.hlo import collectives, total_bytes
from lingvo_moe.sbp.types import parse_mesh
from lingvo_moe.testing.devices import run_on
from lingvo_moe.training.replicas import sum_replicas

pytestmark = pytest.mark.slow

DEVICES, PER_DEVICE, EXPERTS, MODEL, HIDDEN = 8, 3, 12, 4, 5
SLOTS, GRADIENT = DEVICES * PER_DEVICE, 2 * MODEL * HIDDEN  # numbers of an expert
WEIGHTS = NestedMap(
    experts=NestedMap(
        wi=WeightSpec((SLOTS, MODEL, HIDDEN), Constant(0.0), "EMH"),
        wo=WeightSpec((SLOTS, HIDDEN, MODEL), Constant(0.0), "EHM"),
    ),
    placement=TableSpec((DEVICES, PER_DEVICE), Fixed(()), "..", "experts", EXPERTS),
)


def random_table(rng):
    """Every expert once, and some experts again; -1 in the other slots."""
    table = np.full(SLOTS, -1, np.int32)
    table[:EXPERTS] = range(EXPERTS)
    more = rng.integers(SLOTS - EXPERTS + 1)
    table[EXPERTS : EXPERTS + more] = rng.integers(EXPERTS, size=more)
    return rng.permutation(table)


def test_bytes_and_sums():
    report = run_on(DEVICES, __file__)
    assert len({shared for shared, *_ in report}) > 5
    for shared, sent, largest, wrong in report:
        assert sent <= (shared + 0.1) * 4 * GRADIENT
        assert largest <= PER_DEVICE * MODEL * HIDDEN
        assert wrong == 0


def main():
    """For each of twenty placements: experts on several devices, bytes that a device sums, elements
    of the largest array of a device, and slots with a wrong gradient."""
    from lingvo_moe.runtimes.lowering import Layout, partitioned, shapes, weight_specs

    rng = np.random.default_rng(0)
    specs = weight_specs(NestedMap(experts=WEIGHTS.experts), "theta")
    layout = Layout(parse_mesh(f"expert:{DEVICES}"))
    report = []
    for _ in range(20):
        table = random_table(rng)

        def run(flat, table=table):
            tables = NestedMap(placement=tf.constant(table.reshape(DEVICES, PER_DEVICE)))
            grads = sum_replicas(NestedMap.unflatten(flat).theta, tables, WEIGHTS)
            return dict(NestedMap(theta=grads).flatten())

        # The placement is a constant here, so that the compiler counts the sums.
        program = partitioned(run, [specs], specs, layout).lower(*shapes([specs])).compile()
        text = program.as_text()
        arrays = re.findall(r"f32\[([\d,]+)\]", text)
        grads = {n: rng.normal(size=spec.shape).astype(np.float32) for n, spec in specs.items()}
        sums = {name: np.asarray(value) for name, value in program(grads).items()}
        wrong = 0
        for slot, expert in enumerate(table):
            for name, grad in grads.items():
                expected = grad[table == expert].sum(axis=0) * (expert >= 0)
                first = sums[name][np.argmax(table == expert)]
                wrong += not np.allclose(sums[name][slot], expected, atol=1e-5)
                wrong += not np.array_equal(sums[name][slot], first)
        on = table.reshape(DEVICES, -1, 1) == np.arange(EXPERTS)
        shared = np.count_nonzero(on.any(axis=1).sum(axis=0) > 1)
        sent = sum(total_bytes(collectives(text)).values())
        largest = max(np.prod([int(n) for n in dims.split(",")]) for dims in arrays)
        report.append([int(shared), sent, int(largest), int(wrong)])
    print(json.dumps(report))


if __name__ == "__main__":
    main()
