"""What is chosen runs: the losses of one device, and the bytes that were predicted."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
from numpy.testing import assert_allclose

from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.hardware.chips import HARDWARE
from lingvo_moe.planning.costs import count_costs
from lingvo_moe.planning.explain import overrides
from lingvo_moe.planning.search import ROOM, search_strategies
from lingvo_moe.sbp.types import parse_mesh
from lingvo_moe.testing.training_on_mesh import LENGTH, PARAMS, ROWS, TOLERANCE, local, run

pytestmark = pytest.mark.slow

STEPS = 4
SIZES = (
    f"input.batch_size={ROWS}",
    f"input.source_length={LENGTH}",
    f"input.target_length={LENGTH}",
)


@pytest.mark.parametrize("memory", [1e9, 135_500, 113_000])
def test_what_is_chosen_trains_to_the_losses_of_one_device(memory):
    params = override(get_params("tiny.MoE"), [*PARAMS, *SIZES])
    device = dataclasses.replace(HARDWARE["cpu"], memory=memory / ROOM)
    best = search_strategies(params, device, 8).best.strategy
    _, _, losses = local(STEPS)
    (found,) = run(str(best.mesh), STEPS, *overrides(params, best))
    assert_allclose(found, losses, rtol=STEPS * TOLERANCE)


TINY = (
    *("model.num_encoder_layers=1", "model.num_decoder_layers=1", "model.model_dim=16"),
    *("model.hidden_dim=96", "model.num_heads=4", "model.head_dim=12", "source_vocab_size=160"),
    *("target_vocab_size=80", "input.batch_size=16", "input.source_length=10"),
    *("input.target_length=6", "model.dropout_rate=0.0"),
)
MOE = (
    *("model.moe.every_n=1", "model.moe.training=Einsum(groups=8)"),
    *("model.moe.num_experts=8", "model.moe.gating=TopK(k=2)"),
)
STATE = "(('M',('data',)),('A',('expert',)),('V',('expert',)),('e',('expert',)))"


@pytest.mark.parametrize(
    ("model", "mesh", "changes"),
    [
        ("tiny.Dense", "data:2,model:4", ()),
        ("tiny.MoE", "expert:2,model:4", MOE),
        ("tiny.MoE", "expert:8", (*MOE, "model.moe.training=Dropless(groups=8,rung=0)")),
        ("tiny.MoE", "data:2,expert:4", (*MOE, f"sharding=ShardingParams(state_rules={STATE})")),
    ],
)
def test_the_collectives_are_those_of_the_compiled_program(model, mesh, changes):
    params = override(get_params(model), [*TINY, *changes])
    predicted = dict(count_costs(params, parse_mesh(mesh), 4).sent)
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, __file__, model, mesh, *TINY, *changes]
    out = subprocess.check_output(command, env=environment, text=True)
    real = json.loads(out.splitlines()[-1])
    # Sums of metrics, statistics and norms, and the softmax's maxima.
    small = real.pop("all-reduce") - predicted.pop("all-reduce")
    assert 0 <= small < 4000
    assert predicted == real


def main(model, mesh, *changes):
    """Prints bytes by kind of the collectives of a training step."""
    from lingvo_moe.data.packing import batch_of
    from lingvo_moe.jobs.training import train_step
    from lingvo_moe.runtimes.hlo import collectives, total_bytes
    from lingvo_moe.runtimes.lowering import Layout, batch_specs, partition_train_step, shapes
    from lingvo_moe.tasks.translation import TranslationTask

    params = override(get_params(model), changes)
    program, args = partition_train_step(
        train_step(TranslationTask(params, ("a-b", "c-d"))),
        batch_specs(batch_of([], params.input.shape)),
        Layout(parse_mesh(mesh), params.sharding),
    )
    compiled = program.lower(*shapes(args)).compile().as_text()
    print(json.dumps(total_bytes(collectives(compiled))))


if __name__ == "__main__":
    main(*sys.argv[1:])
