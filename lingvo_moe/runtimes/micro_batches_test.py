"""Micro-batches on eight virtual devices: gradients are summed over devices once a step.

Runs itself where JAX has them; each model takes a minute, so all but one are slow tests.
"""

import json
import math
import sys

import numpy as np
import pytest

from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.jobs.training import train_step
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.devices import run_on
from lingvo_moe.testing.tiny_world import SHRINK

ROWS, LENGTH, STEPS = 16, 6, 2
PARAMS = (
    *SHRINK,
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "train.micro_batches=2",
    f"input.batch_size={ROWS}",
    f"input.source_length={LENGTH}",
    f"input.target_length={LENGTH}",
    "source_vocab_size=64",
    "target_vocab_size=64",
    "model.moe.training=Einsum(groups=8)",
    "model.moe.every_n=1",
    "model.dropout_rate=0.1",
)
MODELS = {
    "dense": ("data:8", ("model.moe=None",)),
    "dense, scan": ("data:8", ("model.moe=None", "model.scan=True")),
    "dense, tensor parallel": ("data:4,model:2", ("model.moe=None", "model.activation=SwiGLU()")),
    "experts": (
        "data:2,expert:4",
        (
            "model.moe.shared=Gated()",
            "model.moe.gating=TopK(k=2,scores=Sigmoid(),bias=LossFree(),balance=BySequence(),"
            "limit=NodeLimited(nodes=4,kept=1))",
        ),
    ),
    "dropless experts, scan, remat": (
        "data:2,expert:4",
        (
            "model.scan=True",
            "model.remat=True",
            "model.moe.gating=TopK(k=2)",
            "model.moe.training=Dropless(groups=8,factors=(8.0,))",
        ),
    ),
    "dropless experts, few devices a token": (
        "data:2,expert:4",
        (
            "model.moe.gating=TopK(k=4,limit=NodeLimited(nodes=4,kept=2))",
            "model.moe.training=Dropless(groups=8,kept=2,factors=(8.0,))",
        ),
    ),
    "always-on experts": ("data:2,expert:4", ("model.moe.shared=AlwaysOn(experts=2)",)),
    "experts on every device": (
        "data:8",
        ("model.moe.training=Dropless(groups=8)",),
    ),
    "experts, some frozen": (
        "data:2,expert:4",
        ("optimizer.rate_factors=(('experts/wi|cross_attention/w|embedding',0),('gate',0.1))",),
    ),
    "fairseq's layers": (
        "data:2,expert:4",
        (
            "model.norm=LayerNorm()",
            "model.position=Sinusoidal(first=2)",
            "model.use_bias=True",
            "model.scale_embedding=True",
            "model.scale_attention=True",
        ),
    ),
    "by task": ("data:8", ("model.moe.router=ByTask(task='target')",)),
    "shared embedding, ZeRO": (
        "data:8",
        ("model.shared_embedding=True", "sharding=ZeRO(late_sums=True)"),
    ),
}
TOLERANCE = 2e-6  # as in spmd_test


def make(name):
    """The task of a model and its training step."""
    _, overrides = MODELS[name]
    params = override(get_params("tiny.MoE"), [*PARAMS, *overrides])
    task = TranslationTask(params, ("a-b", "c-d"))
    return task, train_step(task)


def make_batch():
    rng = np.random.default_rng(5)
    names = ("source_ids", "target_ids", "target_inputs")
    batch = {name: rng.integers(4, 64, (ROWS, LENGTH)) for name in names}
    pair = np.broadcast_to(rng.integers(0, 2, (ROWS, 1)), (ROWS, LENGTH))
    filled = np.arange(LENGTH) < rng.integers(2, LENGTH + 1, (ROWS, 1))
    for side in ("source", "target"):
        batch |= {f"{side}_segment_ids": filled, f"{side}_pair_ids": pair}
    return {name: value.astype(np.int32) for name, value in batch.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS))
def test_each_gradient_is_summed_once_a_step_and_the_numbers_are_those_of_one_device(name):
    """The bytes of every weight once, and a few for metrics.

    Only tokens of experts, and weights that are split at rest, are sent besides.
    """
    report = run_on(8, __file__, name)
    losses, biases = train(*make(name))
    np.testing.assert_allclose(report["losses"], losses, rtol=TOLERANCE)
    assert report["biases"] == biases  # to the bit: they follow counts
    assert bool(biases) == (name == "experts")
    assert 1.0 <= report["summed"] / report["weights"] < 1.1
    also = ["all-gather"] if "ZeRO" in name else ["all-to-all"]
    assert set(report["kinds"]) <= {"all-reduce", *also}


def train(task, step):
    """The negative log-likelihood and the gradient's norm of each step on one device; biases."""
    runtime = Local(task, step)
    runtime.initialize(3)
    metrics = [runtime.train(make_batch()) for _ in range(STEPS)]
    return [[float(m.nll), float(m.grad_norm)] for m in metrics], _biases(runtime.state())


def _biases(state):
    """By name, where experts are balanced by them."""
    return {
        name: np.asarray(value).tolist()
        for name, value in state.items()
        if name.endswith("gating/bias")
    }


def main(name):
    """Prints the results of a model on eight devices, and the collectives of its program."""
    import jax

    from lingvo_moe.runtimes import lowering
    from lingvo_moe.runtimes.hlo import collectives
    from lingvo_moe.sbp.types import parse_mesh

    task, step = make(name)
    layout = lowering.Layout(parse_mesh(MODELS[name][0]), task.params.sharding)
    specs = lowering.batch_specs(make_batch())
    program, args = lowering.partition_train_step(step.on_rungs[0], specs, layout)
    compiled = program.lower(*lowering.shapes(args)).compile()
    weights = task.weights()
    initialize, _ = lowering.partition_init(weights, step.optimizer.slots(weights), layout)
    state = initialize({"seed": np.int32(3)})
    batch = jax.device_put(make_batch(), layout.shardings(specs))
    losses = []
    for _ in range(STEPS):
        state, metrics = compiled(state, batch)
        losses.append([float(metrics["nll"]), float(metrics["grad_norm"])])
    found = collectives(compiled.as_text())
    mesh = layout.mesh
    of_tensors = mesh.size(("model",)) if "model" in mesh.axes else 0
    report = {
        "losses": losses,
        "biases": _biases(state),
        "summed": sum(
            c.bytes * c.times
            for c in found
            if c.kind == "all-reduce" and len(c.groups[0]) != of_tensors
        ),
        "weights": 4
        * sum(
            _piece(spec, layout) for _, spec in step.optimizer.split(weights, weights)[0].flatten()
        ),
        "kinds": sorted({c.kind for c in found if c.bytes > 4 * ROWS}),
    }
    print(json.dumps(report))


def _piece(spec, layout):
    """Elements of a device."""
    from lingvo_moe.sbp.types import piece_shape, type_of

    sbp = type_of(spec.dims, spec.shape, layout.mesh, layout.compute_rules)
    return math.prod(piece_shape(spec.shape, sbp, layout.mesh))


if __name__ == "__main__":
    main(*sys.argv[1:])
