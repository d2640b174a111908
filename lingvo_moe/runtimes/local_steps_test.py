"""Training with gating dropout.  Runs itself in two processes of two virtual devices."""

import contextlib
import dataclasses
import functools
import json
import sys

import numpy as np
import pytest

from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.training import train_step
from lingvo_moe.testing.devices import free_address, variables
from lingvo_moe.testing.forks import Fork, wait_for_all
from lingvo_moe.testing.training_on_mesh import TOLERANCE, make_batch, make_task
from lingvo_moe.training.local_steps import LOCAL, WHOLE, LocalSteps

STEPS, SAVED_AT = 4, 2
OVERRIDES = (
    "model.moe.num_groups=4",
    "model.moe.gating=TopK(k=2,scores=Sigmoid(),bias=LossFree(rate=0.01))",
    "model.moe.gating_dropout=GatingDropout(rate=0.5,nodes=4)",
    "train.seed=1",
)


def variants_of(rate, seed, steps, start=0):
    """The variants that LocalSteps chooses, with the metrics of each step."""
    chooser, taken = LocalSteps(rate, seed), []
    chooser.restore({"step": np.int64(start)})
    for _ in range(steps):
        metrics = chooser.take(lambda variant: taken.append(variant) or {"nll": 1.0})
        assert metrics.local_steps == (taken[-1] == LOCAL)
        assert chooser.last == taken[-1]
    return taken


def test_a_share_of_the_steps_is_local_whenever_the_run_began():
    drawn = variants_of(0.3, 7, 2000)
    assert 0.27 < drawn.count(LOCAL) / 2000 < 0.33  # its standard deviation is 0.01
    assert variants_of(0.3, 7, 20, start=1980) == drawn[1980:]
    assert variants_of(0.3, 8, 2000) != drawn
    assert set(variants_of(0.0, 7, 50)) == {WHOLE}


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_what_is_not_finite_is_counted_in_the_kind_of_the_last_step(rate, monkeypatch):
    task = make_task(OVERRIDES)
    step = dataclasses.replace(train_step(task), local_rate=rate)
    runtime, counted = Local(task, step), []
    runtime.initialize(3)
    runtime.train(make_batch(0))
    monkeypatch.setattr(
        type(step), "count_not_finite", lambda self, *_: counted.append(self.task) or NestedMap()
    )
    runtime.count_not_finite(make_batch(0))
    assert counted == [step.local if rate else task]


def numbers(metrics):
    return [float(metrics.nll), float(metrics.grad_norm), float(metrics.local_steps)]


def report(runtime):
    """Numbers of each step, the steps that compiled, and the biases at the end."""
    runtime.initialize(3)
    losses, compiled = [], []
    for step in range(STEPS):

        def compiling(step=step):
            compiled.append(step)
            return contextlib.nullcontext()

        losses.append(numbers(runtime.train(make_batch(step), compiling)))
    biases = {
        name: np.asarray(value).tolist()
        for name, value in runtime.state().items()
        if name.endswith("gating/bias")
    }
    return {"losses": losses, "compiled": compiled, "biases": biases}


@functools.cache
def on_one_device():
    """A runtime and its report."""
    task = make_task(OVERRIDES)
    runtime = Local(task, train_step(task))
    return runtime, report(runtime)


@functools.cache
def in_two_processes():
    address = free_address()
    started = [Fork(__file__, address, str(i), variables=variables(2)) for i in range(2)]
    ended = wait_for_all(started)
    failed = [process.stderr[-3000:] for process in ended if process.returncode]
    assert not failed, failed[0]
    return [json.loads(process.stdout.splitlines()[-1]) for process in ended]


@pytest.mark.slow
def test_some_steps_are_local_and_a_resumed_run_has_the_same():
    runtime, expected = on_one_device()
    assert {local for _, _, local in expected["losses"]} == {0.0, 1.0}
    end = {name: np.array(value) for name, value in runtime.state().items()}
    runtime.initialize(3)
    for step in range(SAVED_AT):
        runtime.train(make_batch(step))
    saved = {name: np.array(value) for name, value in runtime.state().items()}
    runtime.initialize(4)
    runtime.restore(saved)
    again = [numbers(runtime.train(make_batch(step))) for step in range(SAVED_AT, STEPS)]
    assert again == expected["losses"][SAVED_AT:]
    for name, value in runtime.state().items():
        np.testing.assert_array_equal(value, end[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("process", range(2))
def test_two_processes_are_one_device(process):
    found, (_, expected) = in_two_processes()[process], on_one_device()
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=TOLERANCE)
    assert found["biases"] == expected["biases"]  # to the bit: they follow counts
    assert len(found["biases"]) == 2


@pytest.mark.slow
def test_each_variant_compiles_once():
    for found in (on_one_device()[1], in_two_processes()[0]):
        local = [local for _, _, local in found["losses"]]
        assert found["compiled"] == sorted(local.index(variant) for variant in (0.0, 1.0))


@pytest.mark.slow
def test_a_local_step_has_no_all_to_all():
    """Two MoE layers, each there and back, forward and backward: eight in other steps."""
    counts = in_two_processes()[0]["collectives"]
    assert counts[WHOLE]["all-to-all"] == 8
    assert set(counts[LOCAL]) == {"all-reduce"}


def main(address, index):
    """Trains on two devices of each of two processes and prints what the tests look at as JSON."""
    from lingvo_moe.runtimes.lowering import Layout
    from lingvo_moe.runtimes.processes import join_processes
    from lingvo_moe.runtimes.spmd import Spmd
    from lingvo_moe.sharding.annotations import parse_mesh

    with join_processes(address, int(index), 2):
        task = make_task(OVERRIDES)
        step, layout = train_step(task), Layout(parse_mesh("expert:4"), task.params.sharding)
        found = report(Spmd(task, step, layout))
        if index == "0":
            found["collectives"] = [_collectives(variant, layout) for variant in step.variants]
        print(json.dumps(found))


def _collectives(variant, layout):
    from lingvo_moe.runtimes.hlo import collectives, count
    from lingvo_moe.runtimes.lowering import batch_specs, partition_train_step, shapes

    program, args = partition_train_step(variant, batch_specs(make_batch(0)), layout)
    return count(collectives(program.lower(*shapes(args)).compile().as_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
