"""Operators on split tensors, on eight devices and on one: numbers, gradients and collectives.

GShard (Lepikhin et al. 2020), section 3.3 and appendix A.4. As a script it prints a table:

    python -m lingvo_moe.sbp.conformance_slow_test > benchmarks/results/conformance.csv
"""

import csv
import json
import sys

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.sbp.gshard import replicate, shard, split
from lingvo_moe.sbp.types import Mesh
from lingvo_moe.testing.devices import run_on

pytestmark = pytest.mark.slow
EIGHT = Mesh(("x",), (8,))
EVEN, UNEVEN = (24, 16), (11, 16)
IMAGE, ODD_IMAGE, LINE = (8, 16, 16, 4), (8, 11, 16, 4), (8, 32, 4)
GRID = np.array([[7, 5, 3, 1], [0, 2, 4, 6]])


def rows(x):
    return split(x, 0, 8)


def height(x):
    return split(x, 1, 8)


def kernel(size, shape, inner=4):
    """A fixed kernel for x of this rank."""
    full = [size] * (len(shape) - 2) + [inner, 4]
    return tf.reshape(tf.cos(tf.range(np.prod(full), dtype=tf.float32)), full)


def conv(shape, size=3, strides=1, padding="SAME", dilations=1, cut=height):
    def run(x):
        k = kernel(size, shape)
        return tf.nn.convolution(cut(x), k, strides, padding, dilations=dilations)

    return run, shape


def pool(kind, window, strides, padding, shape=IMAGE):
    return lambda x: tf.nn.pool(height(x), window, kind, [strides] * 2, padding), shape


def product(equation, *cuts):
    """x [24, 16] times a matrix made of x; each tensor is split along a dimension or not."""

    def run(x):
        operands = [x, tf.transpose(x) if equation.startswith("ab,bc") else x]
        pairs = zip(operands, cuts[:2], strict=True)
        placed = [one if cut is None else split(one, cut, 8) for one, cut in pairs]
        result = tf.einsum(equation, *placed)
        return result if cuts[2] is None else split(result, cuts[2], 8)

    return run, EVEN


ON_ROWS = {
    "sum": lambda x: tf.reduce_sum(x, 0),
    "mean": lambda x: tf.reduce_mean(x, 0),
    "max": lambda x: tf.reduce_max(x - 9.0, 0),
    "min": lambda x: tf.reduce_min(x + 9.0, 0),
    "product": lambda x: tf.reduce_prod(x, 0),
    "log-sum-exp": lambda x: tf.reduce_logsumexp(x, 0),
    "softmax": lambda x: tf.nn.softmax(x, 0),
    "cumulative sum": lambda x: tf.cumsum(x, 0),
    "cumulative sum, reversed": lambda x: tf.cumsum(x, 0, reverse=True),
    "cumulative product": lambda x: tf.math.cumprod(x, 0),
    "reverse": lambda x: tf.reverse(x, [0]),
    "pad": lambda x: tf.pad(x, [[1, 2], [0, 0]]),
    "slice": lambda x: x[2:9],
    "every second row": lambda x: x[1::2],
    "concat": lambda x: tf.concat([x, 2 * x], 0),
    "roll": lambda x: tf.roll(x, 3, 0),
    "tile": lambda x: tf.tile(x, [2, 1]),
    "reshape to one dimension": lambda x: tf.reshape(x, [-1]),
    "reshape to three dimensions": lambda x: tf.reshape(x, [-1, 4, 4]),
    "transpose": lambda x: tf.transpose(x),
    "gather": lambda x: tf.gather(x, [3, 0, 10, 3]),
    "scatter": lambda x: tf.tensor_scatter_nd_add(x, [[1], [7]], tf.ones([2, 16])),
    "one-hot product": lambda x: tf.einsum("ab,ac->bc", x, tf.one_hot(tf.range(x.shape[0]) % 5, 5)),
    "broadcast": lambda x: x * tf.reduce_mean(x, 1, keepdims=True) + x[:1],
    "where": lambda x: tf.where(x > 0, x, 0.1 * x),
    "sort": lambda x: tf.sort(x, 0),
    "top 3": lambda x: tf.math.top_k(tf.transpose(x), 3).values,
}
CASES = {
    **{
        f"{name}, {size} rows": (lambda x, run=run: run(rows(x)), shape)
        for size, shape in (("24", EVEN), ("11", UNEVEN))
        for name, run in ON_ROWS.items()
    },
    "devices in reversed order": (lambda x: shard(x, np.arange(8)[::-1, None]) ** 2, EVEN),
    "two dimensions": (lambda x: tf.reduce_sum(shard(x, GRID), 0), EVEN),
    "two dimensions, uneven": (lambda x: tf.cumsum(shard(x, GRID), 0), UNEVEN),
    "two orders": (lambda x: shard(shard(x, GRID) + 1, GRID[:, ::-1]), EVEN),
    "split again: AllToAll": (lambda x: split(rows(x) ** 2, 1, 8), EVEN),
    "split again, uneven": (lambda x: split(rows(x) ** 2, 1, 8), UNEVEN),
    "replicate": (lambda x: replicate(rows(x) ** 2), EVEN),
    "product, rows": product("ab,bc->ac", 0, None, 0),
    "product, columns": product("ab,bc->ac", None, 1, 1),
    "product, contracted, copied": product("ab,bc->ac", 1, 0, None),
    "product, contracted, split": product("ab,bc->ac", 1, 0, 0),
    "product, both rows": product("ab,bc->ac", 0, 0, 0),
    "batched product": product("ab,ac->abc", 0, 0, 0),
    "convolution, batch": conv(IMAGE, cut=rows),
    "convolution, halo": conv(IMAGE),
    "convolution, halo, 11 rows": conv(ODD_IMAGE),
    "convolution 5": conv(IMAGE, 5),
    "convolution 2, VALID": conv(IMAGE, 2, padding="VALID"),
    "convolution, VALID": conv(IMAGE, padding="VALID"),
    "convolution, stride 2": conv(IMAGE, strides=2),
    "convolution, stride 2, 11 rows": conv(ODD_IMAGE, strides=2),
    "convolution, stride 2, VALID": conv(IMAGE, strides=2, padding="VALID"),
    "convolution, dilation 2": conv(IMAGE, dilations=2),
    "convolution, one dimension": conv(LINE),
    "convolution, one dimension, stride 4": conv(LINE, 4, strides=4),
    "convolution, channels": (
        lambda x: tf.nn.convolution(split(x, 3, 8), kernel(3, IMAGE, 8), 1, "SAME"),
        (2, 8, 8, 8),
    ),
    "max pooling": pool("MAX", [2, 2], 2, "SAME"),
    "max pooling, overlapping": pool("MAX", [3, 3], 1, "SAME"),
    "max pooling, VALID": pool("MAX", [3, 3], 2, "VALID"),
    "mean pooling": pool("AVG", [2, 2], 2, "SAME"),
    "mean pooling, overlapping": pool("AVG", [3, 3], 1, "SAME"),
}

# The partitioner's gradient is wrong if windows overlap by all but one row (jaxlib 0.10).
WRONG = {"max pooling, overlapping"}


def test_every_case_has_the_numbers_of_one_device():
    found = run_on(8, __file__, "--json")
    assert len(found) >= 60
    assert {name for name, one in found.items() if not max(one["errors"]) < 1e-5} == WRONG
    assert found["max pooling, overlapping"]["errors"][0] == 0
    assert set(found["split again: AllToAll"]["sent"]) == {"all-to-all"}
    assert "collective-permute" in found["convolution, halo"]["sent"]
    assert "all-gather" not in found["convolution, halo"]["sent"]


def measure(run, shape):
    """Relative errors of value and gradient, and kind -> [number, bytes] of collectives."""
    import jax

    from lingvo_moe.runtimes.hlo import collectives, count, total_bytes
    from lingvo_moe.runtimes.lowering import ArraySpec, Layout, lowerable, shapes
    from lingvo_moe.sbp.params import ShardingParams

    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = run(x)
        weights = tf.sin(tf.range(tf.size(result), dtype=tf.float32))
        gradient = tape.gradient(result, x, tf.reshape(weights, tf.shape(result)))
        return result, tf.convert_to_tensor(gradient)

    def on_mesh(args):
        return dict(zip("vg", both(args.x), strict=True))

    x = np.sin(np.arange(np.prod(shape), dtype=np.float32) * 1.7).reshape(shape)
    layout = Layout(EIGHT, ShardingParams(rules=(("X", ("x",)),)))
    args = [{"x": ArraySpec(shape, "float32", "." * len(shape))}]
    # The compiler chooses where results lie, so no collective copies them to all devices.
    program = jax.jit(lowerable(on_mesh, layout), in_shardings=(layout.shardings(args[0]),))
    program = program.lower(*shapes(args)).compile()
    found, errors = program({"x": x}), []
    for ours, expected in zip((found["v"], found["g"]), both(tf.constant(x)), strict=True):
        scale = max(float(np.abs(expected).max()), 1e-6)
        errors.append(float(np.abs(np.asarray(ours) - expected).max()) / scale)
    sent = list(collectives(program.as_text()))
    sizes = total_bytes(sent)
    return {"errors": errors, "sent": {k: [n, sizes[k]] for k, n in count(sent).items()}}


def main():
    found = {}
    for name, case in CASES.items():
        found[name] = measure(*case)
    if "--json" in sys.argv:
        print(json.dumps(found))
        return
    table = csv.writer(sys.stdout)
    table.writerow(["case", "equal to one device", "collectives", "bytes of a device"])
    for name, one in found.items():
        kinds = " ".join(f"{kind} {number}" for kind, (number, _) in one["sent"].items())
        sent = sum(size for _, size in one["sent"].values())
        table.writerow([name, "yes" if max(one["errors"]) < 1e-5 else "no", kinds, sent])


if __name__ == "__main__":
    main()
