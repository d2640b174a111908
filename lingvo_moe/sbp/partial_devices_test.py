"""Placed tensors on eight virtual devices: numbers, and collectives in the programs XLA makes.

Run as a program, this file measures; as tests, it looks at what was measured.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from lingvo_moe.runtimes import hlo
from lingvo_moe.sbp import boxing, types
from lingvo_moe.sbp.types import parse
from lingvo_moe.sharding.annotations import Mesh

LINE = Mesh(("x",), (4,))
GRID = Mesh(("x", "y"), (2, 4))
SHAPE = (8, 16)
# Pairs whose way is one collective, on one axis all; on two axes some of each kind.
ON_A_LINE = [f"{a} {b}" for a in types.every(2, 1) for b in types.every(2, 1)]
ON_A_GRID = [
    "S(0),P S(0),B",
    "S(0),P S(0),S(1)",
    "P,S(1) B,S(1)",
    "P,S(1) S(0),S(1)",
    "P,P B,B",
    "P,P S(0),B",
    "P,P S(1),S(1)",
    "P,B S(1),B",
    "S(0),S(0) B,B",
    "S(0),S(0) S(0),S(1)",
    "S(0),S(1) B,S(1)",
    "S(0),S(1) S(1),S(1)",
    "S(0),S(1) S(0),S(0)",
    "B,S(1) S(0),P",
    "S(0),S(1) P,P",
    "S(1),S(1) S(1),P",
    "B,B P,S(0)",
    "P,S(1) P,S(0)",
    "S(0),B P,B",
]


# ---- the program that measures ----


def measure():
    """Everything, as JSON."""
    results = {
        "boxing": {
            **{f"x {pair}": boxed(LINE, pair) for pair in ON_A_LINE},
            **{f"xy {pair}": boxed(GRID, pair) for pair in ON_A_GRID},
        },
        "product": {late: product(late) for late in ("early", "late")},
        "branches": {late: branches(late) for late in ("early", "late")},
        "grid": {late: product_on_a_grid(late) for late in ("early", "late")},
    }
    print(json.dumps(results))


def run(function, mesh, rules, args, specs, out_spec):
    """The result of a function of TensorFlow's on the devices of a mesh, and its collectives.

    For each argument and result a tuple says which axes cut each dimension.
    """
    import jax
    import tensorflow as tf
    from jax.experimental import jax2tf
    from jax.sharding import NamedSharding, PartitionSpec

    from lingvo_moe.sharding.annotations import use_mesh

    def annotated(*tensors):
        with use_mesh(mesh, rules):
            return function(*tensors)

    places = jax.devices()[: int(np.prod(mesh.shape))]
    jax_mesh = jax.sharding.Mesh(np.array(places).reshape(mesh.shape), mesh.axes)
    where = lambda spec: NamedSharding(jax_mesh, PartitionSpec(*spec))  # noqa: E731
    traced = tf.function(annotated, jit_compile=True, autograph=False)
    compiled = (
        jax.jit(
            jax2tf.call_tf(traced, call_tf_graph=False),
            in_shardings=tuple(map(where, specs)),
            out_shardings=jax.tree.map(where, out_spec, is_leaf=lambda x: isinstance(x, tuple)),
        )
        .lower(*args)
        .compile()
    )
    sent = [jax.device_put(x, where(spec)) for x, spec in zip(args, specs, strict=True)]
    found = [
        {"kind": c.kind, "bytes": c.bytes, "times": c.times, "devices": len(c.groups[0])}
        for c in hlo.collectives(compiled.as_text())
    ]
    return jax.tree.map(np.asarray, compiled(*sent)), found


def boxed(mesh, pair):
    """One conversion: whether it keeps the tensor, and its collectives."""
    from lingvo_moe.sbp import partial

    source, target = map(parse, pair.split())
    random = np.random.default_rng(0)
    whole = random.integers(-50, 50, SHAPE).astype(np.float32)
    before, after = layout(source, mesh), layout(target, mesh)
    value = types.cut(whole, summands_only(source), mesh, random)
    value = value[tuple(slice(None) if a == types.P else 0 for a in source)]

    def function(x):
        result = partial.box(partial.Placed(x, source), target)
        assert result.sbp == target, result
        return result.value

    value, found = run(function, mesh, {}, [value], [before], after)
    added = value.sum(tuple(range(target.count(types.P))))
    return {"same": bool(np.array_equal(added, whole)), "found": found}


def summands_only(value):
    """With B where it cuts: NumPy makes the summands, JAX cuts."""
    return types.NdSbp(one if one == types.P else types.B for one in value)


def layout(value, mesh):
    """JAX's PartitionSpec of a Placed value."""
    front = [axis for axis, one in zip(mesh.axes, value, strict=True) if one == types.P]
    return (*front, *(group or None for group in types.split_axes(value, len(SHAPE), mesh)))


def product(late):
    """Y = U V W, V's rows cut."""
    from lingvo_moe.sbp.partial import einsum, place, reduce_partial
    from lingvo_moe.sharding.annotations import annotate

    random = np.random.default_rng(1)
    u, v, w = (random.normal(size=s).astype(np.float32) for s in ((8, 16), (16, 64), (64, 20)))

    def early(u, v, w):
        uv = annotate(annotate(u, "ab") @ annotate(v, "bc"), "ac")
        return annotate(uv @ annotate(w, "ce"), "ae")

    def lately(u, v, w):
        uv = einsum("ab,bc->ac", place(u, "ab"), place(v, "bc"))
        return reduce_partial(einsum("ac,ce->ae", uv, place(w, "ce")))

    function = {"early": early, "late": lately}[late]
    specs = [(None, "x"), ("x", None), ()]
    value, found = run(function, LINE, {"b": "x"}, [u, v, w], specs, ())
    return {"error": error(value, u @ v @ w), "found": found}


def product_on_a_grid(late):
    """Rows over x, contraction over y, then a linear layer, to columns over y."""
    import tensorflow as tf

    from lingvo_moe.sbp.partial import add, einsum, place, reduce_partial, scale, transpose
    from lingvo_moe.sharding.annotations import annotate

    random = np.random.default_rng(2)
    u, v, w = (random.normal(size=s).astype(np.float32) for s in ((8, 16), (16, 32), (32, 12)))
    bias = random.normal(size=12).astype(np.float32)
    expected = (u @ v @ w / 2 + bias).T

    def early(u, v, w, bias):
        uv = annotate(annotate(u, "ab") @ annotate(v, "bc"), "ac")
        return annotate((uv @ w / 2 + bias), "ae")

    def lately(u, v, w, bias):
        uv = einsum("ab,bc->ac", place(u, "ab"), place(v, "bc"))
        y = scale(einsum("ac,ce->ae", uv, place(w, "ce")), 0.5)
        y = add(y, einsum("a,e->ae", place(tf.ones([8]), "a"), place(bias, "e")))
        return reduce_partial(transpose(y, [1, 0]), types.S(0))

    function = {"early": early, "late": lately}[late]
    out = {"early": ("x", "y"), "late": ("y", "x")}[late]
    specs = [("x", "y"), ("y", None), (), ()]
    value, found = run(function, GRID, {"a": "x", "b": "y"}, [u, v, w, bias], specs, out)
    return {"error": error(value if late == "late" else value.T, expected), "found": found}


def branches(late):
    """x + attention's last product + feed-forward's: two contractions over cut dimensions."""
    import tensorflow as tf

    from lingvo_moe.sbp.partial import add, einsum, place, reduce_partial
    from lingvo_moe.sharding.annotations import annotate

    random = np.random.default_rng(3)
    shapes = (8, 12), (8, 16), (16, 12), (12, 32), (32, 12)
    x, heads, wo, wi, wf = (random.normal(size=s).astype(np.float32) for s in shapes)

    def early(x, heads, wo, wi, wf):
        attended = annotate(tf.einsum("BN,NM->BM", annotate(heads, "BN"), wo), "BM")
        hidden = tf.nn.relu(annotate(tf.einsum("BM,MH->BH", x, wi), "BH"))
        return x + attended + annotate(tf.einsum("BH,HM->BM", hidden, wf), "BM")

    def lately(x, heads, wo, wi, wf):
        attended = einsum("BN,NM->BM", place(heads, "BN"), place(wo, "NM"))
        hidden = tf.nn.relu(einsum("BM,MH->BH", place(x, "BM"), place(wi, "MH")).tensor)
        projected = einsum("BH,HM->BM", place(hidden, "BH"), place(wf, "HM"))
        return reduce_partial(add(attended, projected, place(x, "BM")))

    function = {"early": early, "late": lately}[late]
    rules = {"N": "x", "H": "x"}
    specs = [(), (None, "x"), ("x", None), (None, "x"), ("x", None)]
    value, found = run(function, LINE, rules, [x, heads, wo, wi, wf], specs, ())
    expected = x + heads @ wo + np.maximum(x @ wi, 0) @ wf
    return {"error": error(value, expected), "found": found}


def error(value, expected):
    """The greatest difference, relative to the greatest number."""
    return float(np.abs(value - expected).max() / np.abs(expected).max())


if __name__ == "__main__":
    measure()


# ---- the tests ----


@pytest.fixture(scope="module")
def measured():
    pytest.importorskip("jax")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    result = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, env=environment, timeout=900
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def received(found):
    """Bytes a device receives."""
    return sum(boxing.received(c["kind"], c["bytes"], c["devices"]) * c["times"] for c in found)


def reductions(found, devices):
    """Sizes of the reductions of groups of so many devices, the smallest first."""
    return sorted(
        c["bytes"]
        for c in found
        if c["kind"] == "all-reduce" and c["devices"] == devices
        for _ in range(c["times"])
    )


@pytest.mark.parametrize(
    ("mesh", "pair"), [*((LINE, p) for p in ON_A_LINE), *((GRID, p) for p in ON_A_GRID)]
)
def test_boxing(measured, mesh, pair):
    result = measured["boxing"][f"{''.join(mesh.axes)} {pair}"]
    steps = boxing.plan(*map(parse, pair.split()), SHAPE, 4, mesh)
    assert result["same"]
    assert received(result["found"]) == sum(step.received for step in steps)


def test_a_product_of_three_is_reduced_once(measured):
    early, late = measured["product"]["early"], measured["product"]["late"]
    assert early["error"] < 1e-5 > late["error"]
    assert reductions(early["found"], 4) == [8 * 64 * 4]  # U V
    assert reductions(late["found"], 4) == [8 * 20 * 4]  # Y
    assert len(late["found"]) == 1


def test_branches_share_a_reduction(measured):
    early, late = measured["branches"]["early"], measured["branches"]["late"]
    assert early["error"] < 1e-5 > late["error"]
    # XLA combines reductions that wait for each other into one instruction; the bytes remain.
    assert sum(reductions(early["found"], 4)) == 2 * 8 * 12 * 4
    assert reductions(late["found"], 4) == [8 * 12 * 4]
    assert len(late["found"]) == 1


def test_linear_operators_on_a_grid(measured):
    early, late = measured["grid"]["early"], measured["grid"]["late"]
    assert early["error"] < 1e-5 > late["error"]
    # Half the rows, x's part, of U V [8, 32], whole; of Y [8, 12] half of a reduction.
    assert received(early["found"]) == 2 * 3 / 4 * (4 * 32 * 4)
    assert received(late["found"]) == 3 / 4 * (4 * 12 * 4)
