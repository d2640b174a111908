"""Late sums as in docs/sbp.md: fewer bytes in the compiled program, same results.

Runs itself in a separate process with four virtual devices, which split the letter Z.
"""

import json

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.sharding.annotations import annotate
from lingvo_moe.testing.devices import run_on

D = 4
U, V, W = (8, 16), (16, 64), (64, 20)
X, HEADS, WO, WI, WF = (8, 12), (8, 16), (16, 12), (12, 32), (32, 12)


def rows(weight):
    """[K, N] as [Z, K / Z, N]."""
    return annotate(tf.reshape(weight, [D, -1, weight.shape[1]]), "Zkn")


def columns(inputs):
    """[B, K] as [Z, B, K / Z]."""
    parts = tf.reshape(inputs, [inputs.shape[0], D, -1])
    return annotate(tf.transpose(parts, [1, 0, 2]), "ZBk")


def total(summands):
    """[Z, B, M] as [B, M]: the sum over devices."""
    return annotate(tf.reduce_sum(annotate(summands, "ZBM"), axis=0), "BM")


def product_early(u, v, w):
    """U V W with V's rows cut: U V is summed."""
    return total(columns(u) @ rows(v)) @ w


def product_late(u, v, w):
    """Y is summed."""
    return total(annotate(columns(u) @ rows(v), "Zac") @ w)


def branches_early(x, heads, wo, wi, wf):
    """x, attention's last product and a feed-forward layer, each summed."""
    hidden = tf.nn.relu(x @ annotate(wi, "mZ"))
    return x + total(columns(heads) @ rows(wo)) + total(columns(hidden) @ rows(wf))


def branches_late(x, heads, wo, wi, wf):
    """Summed together."""
    hidden = tf.nn.relu(x @ annotate(wi, "mZ"))
    return x + total(columns(heads) @ rows(wo) + columns(hidden) @ rows(wf))


FUNCTIONS = {
    "product early": (product_early, (U, V, W)),
    "product late": (product_late, (U, V, W)),
    "branches early": (branches_early, (X, HEADS, WO, WI, WF)),
    "branches late": (branches_late, (X, HEADS, WO, WI, WF)),
}


def main():
    """Compiles and runs all of them; prints their results, and the collectives."""
    import jax

    from lingvo_moe.runtimes.hlo import collectives
    from lingvo_moe.runtimes.lowering import ArraySpec, Layout, partitioned
    from lingvo_moe.sharding.annotations import Mesh
    from lingvo_moe.sharding.params import ShardingParams

    layout = Layout(Mesh(("x",), (D,)), ShardingParams(rules=(("Z", ("x",)),)))
    report = {}
    for name, (function, shapes) in FUNCTIONS.items():
        arrays = {str(i): array for i, array in enumerate(inputs(shapes))}
        specs = {i: ArraySpec(array.shape, "float32", "..") for i, array in arrays.items()}
        program = partitioned(
            lambda operands, function=function: {
                "result": function(*(value for _, value in sorted(operands.items())))
            },
            [specs],
            None,
            layout,
        )
        arrays = jax.device_put(arrays, layout.shardings(specs))
        compiled = program.lower(arrays).compile()
        report[name] = {
            "result": np.asarray(compiled(arrays)["result"]).tolist(),
            "sent": [(c.kind, c.bytes) for c in collectives(compiled.as_text())],
        }
    print(json.dumps(report))


def inputs(shapes):
    """Normal numbers."""
    random = np.random.default_rng(0)
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.fixture(scope="module")
def report():
    return run_on(D, __file__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers(report, name):
    """Those of one device, where annotations mean nothing."""
    function, shapes = FUNCTIONS[name]
    expected = function(*map(tf.constant, inputs(shapes)))
    np.testing.assert_allclose(report[name]["result"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "summed"),
    [
        ("product early", 8 * 64),  # U V
        ("product late", 8 * 20),  # Y
        ("branches early", 2 * 8 * 12),
        ("branches late", 8 * 12),
    ],
)
def test_what_is_sent(report, name, summed):
    kinds, sizes = zip(*report[name]["sent"], strict=True)
    assert set(kinds) == {"all-reduce"}
    assert sum(sizes) == 4 * summed


if __name__ == "__main__":
    main()
