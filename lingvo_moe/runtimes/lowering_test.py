"""What is compiled for eight devices; runs itself where JAX has them."""

import dataclasses
import json

import tensorflow as tf

from lingvo_moe.core.layer import Constant, WeightSpec
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.sharding.params import ShardingParams
from lingvo_moe.testing.devices import run_on
from lingvo_moe.train.adafactor import Adafactor

ROWS, COLUMNS = 160, 128
# A gate, whose columns are cut at rest, and a weight of the same shape that every device holds.
WEIGHTS = NestedMap(
    gate=WeightSpec((ROWS, COLUMNS), Constant(0.5), "Me"),
    query=WeightSpec((ROWS, COLUMNS), Constant(0.5), "MA"),
)
SHARDING = ShardingParams(state_rules=(("e", ("expert",)),))


def test_how_one_weight_is_cut_does_not_spread_to_another_of_its_shape():
    """Through equal constants it did, and the other weight was gathered after its update."""
    gathered = [size for kind, size in run_on(8, __file__) if kind == "all-gather"]
    assert max(gathered, default=0) <= 4 * COLUMNS


def main():
    """Prints kind and bytes of each collective of an update of both weights."""
    from lingvo_moe.runtimes.lowering import Placement, partitioned, shapes, weight_specs
    from lingvo_moe.sharding.annotations import annotate, parse_mesh
    from lingvo_moe.sharding.hlo import collectives

    optimizer = Adafactor()
    slots = optimizer.slots(WEIGHTS)

    def update(theta, slot_values, grads):
        trees = (NestedMap.unflatten(flat) for flat in (theta, slot_values, grads))
        theta, slot_values, grads = (tree[name] for tree, name in zip(trees, "tsg", strict=True))
        grads = grads.map(lambda grad, spec: annotate(grad, spec.dims), WEIGHTS)
        new, slot_values, _ = optimizer.update(
            theta, slot_values, grads, tf.constant(3, tf.int64), WEIGHTS
        )
        return dict(NestedMap(t=new).flatten()), dict(NestedMap(s=slot_values).flatten())

    whole = WEIGHTS.map(lambda spec: dataclasses.replace(spec, dims=".."))
    args = [weight_specs(WEIGHTS, "t"), weight_specs(slots, "s"), weight_specs(whole, "g")]
    placement = Placement(parse_mesh("expert:8"), SHARDING)
    program = partitioned(update, args, tuple(args[:2]), placement)
    text = program.lower(*shapes(args)).compile().as_text()
    print(json.dumps([[c.kind, c.bytes] for c in collectives(text)]))


if __name__ == "__main__":
    main()
