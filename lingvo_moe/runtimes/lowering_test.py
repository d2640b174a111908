"""What is compiled for eight devices; runs itself where JAX has them."""

import collections
import csv
import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from lingvo_moe.nn.layer import Constant, WeightSpec
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.sbp.params import ShardingParams, ZeRO
from lingvo_moe.sbp.types import parse_mesh
from lingvo_moe.testing.annotated_steps import annotated, row_of
from lingvo_moe.testing.devices import run_on
from lingvo_moe.training.adafactor import Adafactor

ROWS, COLUMNS = 160, 128
# A gate, whose columns are cut at rest, and a weight of the same shape that every device holds.
WEIGHTS = NestedMap(
    gate=WeightSpec((ROWS, COLUMNS), Constant(0.5), "Me"),
    query=WeightSpec((ROWS, COLUMNS), Constant(0.5), "MA"),
)
SHARDING = ShardingParams(state_rules=(("e", ("expert",)),))
# As many experts as elements of all heads: the output has the shape of the rows of experts.
EQUAL = NestedMap(
    output=WeightSpec((3, 8, 16), Constant(0.5), "YAM"),
    experts=WeightSpec((3, 8, 16, 32), Constant(0.5), "YEMH"),
)
# Three of each: whole, cut at rest along what is averaged over or along the rows, and experts.
ALIKE = NestedMap(
    {
        name: NestedMap({f"{i}": WeightSpec(shape, Constant(0.5), dims) for i in range(3)})
        for name, (shape, dims) in {
            "bias": ((24,), "H"),
            "scale": ((64,), "M"),
            "query": ((ROWS, COLUMNS), "MA"),
            "gate": ((64, 8), "Me"),
            "experts": ((8, 16, 32), "EMH"),
            "layers": ((2, 16, 32), "YMH"),
        }.items()
    }
)


# Layers of two weights of one shape, of which one is cut at rest.
LAYERS, WIDTH = 3, 16
BLOCK = NestedMap(
    into=WeightSpec((LAYERS, WIDTH, WIDTH), Constant(0.5), "YMH"),
    query=WeightSpec((LAYERS, WIDTH, WIDTH), Constant(0.5), "YMA"),
)
HIDDEN_AT_REST = ShardingParams(state_rules=(("H", ("data",)),))


class OneByOne(Adafactor):
    """Adafactor without stacks."""

    takes_stacks = False


TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "few_annotations.csv"


@pytest.mark.parametrize(
    ("dispatcher", "each"),
    [pytest.param("Einsum", 4, marks=pytest.mark.slow), ("Gather", 2)],
)
def test_a_step_annotates_only_what_is_dispatched(dispatcher, each):
    """The rows before and after the AllToAlls of two MoE layers, and their gradients."""
    assert annotated(dispatcher) == 2 * 2 * each <= 16


def test_few_annotations_send_no_more_than_all():
    rows = csv.DictReader(TABLE.read_text().splitlines())
    by_case = collections.defaultdict(dict)
    for row in rows:
        by_case[row["mesh"], row["dispatcher"], row["set"]][row["annotations"]] = row
    assert len({mesh for mesh, _, _ in by_case}) >= 6
    for few, every in ((case["few"], case["all"]) for case in by_case.values()):
        assert int(few["tensors"]) <= 16 < int(every["tensors"])
        assert 0 < int(few["bytes"]) <= int(every["bytes"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [("data:4,expert:2", "Einsum", ""), ("data:2,expert:2,model:2", "Gather", "")]
)
def test_a_step_sends_the_bytes_of_the_table(case):
    (expected,) = (
        row
        for row in csv.reader(TABLE.read_text().splitlines())
        if tuple(row[:4]) == (*case, "few")
    )
    assert run_on(8, __file__, "step", *case) == expected


def test_how_one_weight_is_cut_does_not_spread_to_another_of_its_shape():
    """Without annotations equal constants share a sharding, and the other weight is gathered."""
    gathered = [size for kind, size in run_on(8, __file__, "cut") if kind == "all-gather"]
    assert max(gathered, default=0) <= 4 * COLUMNS


def test_how_experts_are_cut_does_not_spread_to_a_weight_of_the_shape_of_their_rows():
    assert "all-gather" not in {kind for kind, _ in run_on(8, __file__, "equal")}


@pytest.mark.slow
def test_weights_that_are_stacked_send_what_they_send_one_by_one():
    """A stack is split like its weights: their collectives become one with all their bytes."""
    stacked, alone = run_on(8, __file__, "alike")
    assert len(stacked) < len(alone)

    def sent(program):
        return {k: sum(size for kind, size in program if kind == k) for k, _ in program}

    assert sent(stacked) == sent(alone)


def test_gradients_of_a_loop_lie_as_their_weights_do_at_rest():
    """While the loop fills them, too, and how one is cut does not spread to the other."""
    found = run_on(8, __file__, "loop")
    kept = [LAYERS, 1, WIDTH]  # the one row of a device, before each layer
    assert found["filled"] == [kept, [LAYERS, WIDTH, WIDTH // 8], [LAYERS, WIDTH, WIDTH]]
    assert found["gathered"] == [4 * LAYERS * WIDTH * WIDTH]  # the weight that is cut at rest


def main(what, *arguments):
    """Prints the results for a test."""
    if what == "step":
        found = row_of("few", *arguments)
    elif what == "cut":
        found = program(Adafactor(), WEIGHTS, "expert:8", SHARDING)
    elif what == "equal":
        found = program(Adafactor(min_dim_size_to_factor=8), EQUAL, "expert:8", ShardingParams())
    elif what == "alike":
        optimizers = Adafactor(), OneByOne()
        found = [program(o, ALIKE, "data:2,expert:4", ZeRO()) for o in optimizers]
    else:
        found = loop()
    print(json.dumps(found))


def program(optimizer, weights, mesh, sharding):
    """[[kind, bytes]] of the collectives of an update of these weights, compiled for the mesh."""
    from lingvo_moe.runtimes.hlo import collectives
    from lingvo_moe.runtimes.lowering import Layout, partitioned, shapes, weight_specs
    from lingvo_moe.sbp.annotations import annotate

    slots = optimizer.slots(weights)

    def update(theta, slot_values, grads):
        trees = (NestedMap.unflatten(flat) for flat in (theta, slot_values, grads))
        theta, slot_values, grads = (tree[name] for tree, name in zip(trees, "tsg", strict=True))
        grads = grads.map(lambda grad, spec: annotate(grad, spec.dims), weights)
        new, slot_values, _ = optimizer.update(
            theta, slot_values, grads, tf.constant(3, tf.int64), weights
        )
        return dict(NestedMap(t=new).flatten()), dict(NestedMap(s=slot_values).flatten())

    whole = weights.map(lambda spec: dataclasses.replace(spec, dims="." * len(spec.dims)))
    args = [weight_specs(weights, "t"), weight_specs(slots, "s"), weight_specs(whole, "g")]
    layout = Layout(parse_mesh(mesh), sharding)
    compiled = partitioned(update, args, tuple(args[:2]), layout)
    text = compiled.lower(*shapes(args)).compile().as_text()
    return [[c.kind, c.bytes] for c in collectives(text)]


def loop():
    """The shapes that a loop fills with gradients, and the bytes of its program's AllGathers."""
    from lingvo_moe.layers.scan import scan
    from lingvo_moe.runtimes.hlo import collectives
    from lingvo_moe.runtimes.lowering import Layout, partitioned, shapes, weight_specs
    from lingvo_moe.sbp import copies
    from lingvo_moe.sbp.annotations import annotate

    inputs = NestedMap(x=WeightSpec((8, WIDTH), Constant(0.0), "BM"))

    def cut(theta):
        return theta.map(lambda w, spec: copies.annotate_weight(w, spec.dims, at_rest=True), BLOCK)

    def layer(theta, x, shared, each):
        hidden = tf.tanh(annotate(x @ theta.into, "BH"))
        return annotate(tf.tanh(hidden @ theta.query), "BM"), tf.constant(0.0), None

    def gradients(theta, inputs):
        theta = NestedMap.unflatten(theta).t
        with tf.GradientTape() as tape:
            theta.map(tape.watch)
            used = theta.map(lambda w, spec: copies.gather_weight(w, spec.dims), BLOCK)
            outputs, *_ = scan(layer, used, inputs["i/x"], None, tf.zeros([LAYERS]), cut)
        return dict(NestedMap(t=tape.gradient(outputs, theta)).flatten())

    args = [weight_specs(BLOCK, "t"), weight_specs(inputs, "i")]
    layout = Layout(parse_mesh("data:8"), HIDDEN_AT_REST)
    compiled = partitioned(gradients, args, args[0], layout)
    text = compiled.lower(*shapes(args)).compile().as_text()
    filled = re.findall(rf"= f32\[({LAYERS},[\d,]+)\]\S* dynamic-update-slice\(", text)
    filled = {shape for shape in filled if len(shape.split(",")) == 3}
    return {
        "filled": sorted([int(size) for size in shape.split(",")] for shape in filled),
        "gathered": [c.bytes for c in collectives(text) if c.kind == "all-gather"],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
