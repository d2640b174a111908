import json
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lingvo_moe.testing.devices import run_on
from lingvo_moe.testing.training_on_mesh import local, make_batch, make_task, run

STEPS = 50
# Rounding errors of about 1e-7 a step accumulate; a different draw or routing would give 1e-3.
TOLERANCE = 2e-5
# Muon enlarges the small singular values of a gradient, and their rounding errors with them.
MUON_TOLERANCE = 2e-4

DROPLESS = "model.moe.training=Dropless(groups=8)"
SENTENCES = make_batch(5)["source_ids"][:5], np.array([9, 2, 7, 5, 1], np.int32)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("mesh", "flags"),
    [
        ("data:8", ()),
        ("expert:8", ()),
        ("data:2,expert:4", ()),
        ("data:2,expert:2,model:2", ()),
        ("data:2,expert:4", ("sharding=ZeRO()",)),
        ("data:2,expert:2,model:2", ("model.moe.training=Gather(groups=8)",)),
    ],
)
def test_fifty_steps_are_those_of_one_device(mesh, flags):
    _, _, losses = local(STEPS)
    (found,) = run(mesh, STEPS, *flags)
    assert_allclose(found, losses, rtol=TOLERANCE)


@pytest.mark.parametrize("flags", [(), (DROPLESS,)], ids=["capacity", "dropless"])
def test_two_processes_of_four_devices_are_one_device(flags):
    _, _, losses = local(STEPS, *(flag.replace("Dropless", "Ragged") for flag in flags))
    for found in run("data:2,expert:4", STEPS, *flags, devices=4, processes=2):
        assert_allclose(found, losses, rtol=TOLERANCE)


def test_dropless_evaluates_and_translates_as_one_device():
    runtime, _, _ = local(0)
    nll, ids, lengths = run_on(8, __file__, "dropless")
    assert_allclose(nll, runtime.evaluate(make_batch(99)).nll, rtol=TOLERANCE)
    expected = runtime.translate(*SENTENCES)
    assert_array_equal(lengths, expected.lengths)
    assert_array_equal(np.array(ids)[:, :, : expected.ids.shape[2]], expected.ids)


@pytest.mark.parametrize(
    ("mesh", "processes"), [("data:2,expert:2,model:2", 1), ("data:2,expert:4", 2)]
)
def test_muon_on_many_devices_is_muon_on_one(mesh, processes):
    """Its products sum over sharded dimensions. Two processes have four devices each."""
    muon = "optimizer=Muon(schedule=Constant(learning_rate=0.01),min_dim_size_to_factor=8)"
    _, _, losses = local(STEPS, muon)
    for found in run(mesh, STEPS, muon, devices=8 // processes, processes=processes):
        assert_allclose(found, losses, rtol=MUON_TOLERANCE)
    assert losses[-1][0] < losses[0][0]


@pytest.mark.parametrize(
    "dispatcher", ["Dropless(groups=8)", "VExperts(devices=8, slots_per_device=2, groups=8)"]
)
def test_the_lowest_and_the_highest_rung_compile(dispatcher):
    for rung in (0, -1):
        found = run_on(
            8, __file__, str(rung), f"model.moe.training={dispatcher}", "model.moe.gating=TopK(k=2)"
        )
        assert "all-to-all" in dict(found)


def evaluate_dropless():
    """Prints what the smallest model computes on a mesh."""
    from lingvo_moe.runtimes.lowering import Layout
    from lingvo_moe.runtimes.spmd import Spmd
    from lingvo_moe.sbp.types import parse_mesh

    task = make_task((DROPLESS, "model.moe.evaluation=Dropless()"))
    runtime = Spmd(task, None, Layout(parse_mesh("data:2,expert:4"), task.params.sharding))
    runtime.initialize(3)
    output = runtime.translate(*SENTENCES)
    nll = float(runtime.evaluate(make_batch(99)).nll)
    print(json.dumps([nll, output.ids.tolist(), output.lengths.tolist()]))


def main(rung="0", *overrides):
    """Prints kind and bytes of each collective of tiny.MoE's step on eight devices."""
    from lingvo_moe.config.params import override
    from lingvo_moe.config.registry import get_params
    from lingvo_moe.data.packing import batch_of
    from lingvo_moe.jobs.training import train_step
    from lingvo_moe.runtimes.hlo import collectives
    from lingvo_moe.runtimes.lowering import Layout, batch_specs, partition_train_step, shapes
    from lingvo_moe.sbp.types import parse_mesh
    from lingvo_moe.tasks.translation import TranslationTask

    changes = ["model.moe.training=Einsum(groups=8)", *overrides]
    params = override(get_params("tiny.MoE"), changes)
    task = TranslationTask(params, ("a-b", "c-d", "e-f"))
    program, args = partition_train_step(
        train_step(task).on_rungs[int(rung)],
        batch_specs(batch_of([], params.input.shape)),
        Layout(parse_mesh("expert:8")),
    )
    text = program.lower(*shapes(args)).compile().as_text()
    print(json.dumps([[c.kind, c.bytes] for c in collectives(text)]))


if __name__ == "__main__":
    evaluate_dropless() if sys.argv[1:] == ["dropless"] else main(*sys.argv[1:])
