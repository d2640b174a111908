"""A run on eight devices goes on from its checkpoint on any others; a crash costs no checkpoint.

Runs itself in processes of their own, where JAX has virtual devices.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.training import train_step
from lingvo_moe.testing.devices import environment, free_address
from lingvo_moe.testing.training_on_mesh import MESH, TOLERANCE, make_batch, make_task
from lingvo_moe.training import checkpoint as checkpoint_module
from lingvo_moe.training.checkpoint import Checkpointer
from lingvo_moe.training.process import ALONE

pytestmark = pytest.mark.slow

STEPS = 2
TWO_OF_TWO = "expert:4"  # each of two processes holds experts that the other does not
KILLED = -signal.SIGKILL


def start(role, directory, mesh, *, devices, processes=1):
    """The processes of a job."""
    address = free_address()
    return [
        subprocess.Popen(
            [sys.executable, __file__, role, str(directory), mesh, address, str(i), str(processes)],
            env=environment(devices),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]


def finish(jobs):
    """What each process reports."""
    reports = []
    for job in jobs:
        out, errors = job.communicate()
        assert job.returncode == 0, errors[-3000:]
        reports.append(json.loads(out.splitlines()[-1]))
    return reports


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(directory, loss of the step after the checkpoint)."""
    directory = tmp_path_factory.mktemp("saved")
    (report,) = finish(start("save", directory, MESH, devices=8))
    return directory, report["loss"]


@pytest.mark.parametrize(
    ("mesh", "devices", "processes"),
    [
        (MESH, 8, 1),
        ("data:1", 1, 1),
        ("expert:2", 2, 1),
        ("data:2,expert:2", 4, 1),
        ("data:2,expert:2", 2, 2),
        (TWO_OF_TWO, 2, 2),
    ],
)
def test_restored_on_other_devices(saved, mesh, devices, processes):
    """Every piece on every device is bit-identical, and so is the next loss."""
    directory, loss = saved
    jobs = start("restore", directory, mesh, devices=devices, processes=processes)
    reports = finish(jobs)
    assert [report["step"] for report in reports] == [STEPS] * processes
    tolerance = 0 if mesh == MESH else TOLERANCE
    for report in reports:
        np.testing.assert_allclose(report["loss"], loss, rtol=tolerance)


def test_restored_on_one_device_by_tensorflow(saved):
    directory, loss = saved
    runtime = Local(make_task(), train_step(make_task()))
    Checkpointer(directory).resume(lambda found: runtime.restore(found.tensors))
    assert_same_bits(directory, runtime.state())
    np.testing.assert_allclose(next_loss(runtime), loss, rtol=TOLERANCE)


def test_a_crash_between_pieces_leaves_the_previous_checkpoint_whole(saved):
    """One of two processes is killed when it has written half of its pieces and the other all."""
    directory, loss = saved
    first, second = start("crash", directory, TWO_OF_TWO, devices=2, processes=2)
    _, errors = second.communicate()
    assert second.returncode == KILLED, errors[-3000:]
    _, errors = first.communicate(timeout=60)
    assert first.returncode == 1
    assert f"process 1 (pid {second.pid} on " in errors
    partial = directory / f"step_{STEPS + 1:08d}.partial"
    assert list(partial.glob("process-00001*data*"))  # something of the second's was there
    assert Checkpointer(directory).steps() == [STEPS]
    reports = finish(start("resume", directory, TWO_OF_TWO, devices=2, processes=2))
    for report in reports:
        np.testing.assert_allclose(report["loss"], loss, rtol=TOLERANCE)
    assert Checkpointer(directory).steps() == [STEPS, STEPS + 1]
    assert not partial.exists()


def next_loss(runtime):
    """Of the step after the checkpoint."""
    metrics = runtime.train(make_batch(STEPS))
    return float(metrics.nll) / float(metrics.tokens)


def assert_same_bits(directory, state):
    """Every piece that is here, against what the eight devices held when they saved."""
    with np.load(directory / "live.npz") as held:
        expected = dict(held)
    assert state.keys() == expected.keys()
    for name, value in state.items():
        for index, piece in _pieces(value):
            assert piece.tobytes() == expected[name][index].tobytes(), name


def _pieces(value):
    if hasattr(value, "addressable_shards"):
        return [(shard.index, np.asarray(shard.data)) for shard in value.addressable_shards]
    return [((), np.asarray(value))]


def main(role, directory, mesh, address, index, processes):
    """One process of a job."""
    from lingvo_moe.runtimes import processes as process_group
    from lingvo_moe.runtimes.lowering import Layout
    from lingvo_moe.runtimes.spmd import Spmd
    from lingvo_moe.sharding.annotations import parse_mesh

    directory, alone = Path(directory), contextlib.nullcontext(ALONE)
    together = process_group.join_processes(address, int(index), int(processes))
    with together if int(processes) > 1 else alone as process:
        task = make_task()
        runtime = Spmd(task, train_step(task), Layout(parse_mesh(mesh), task.params.sharding))
        print(json.dumps(_play(role, directory, runtime, process)))


def _play(role, directory, runtime, process):
    """What a process does, and reports."""
    checkpoints = Checkpointer(directory, process=process)
    if role == "save":
        runtime.initialize(3)
        for step in range(STEPS):
            runtime.train(make_batch(step))
        checkpoints.save(STEPS, runtime.state())
        np.savez(directory / "live.npz", **{n: np.asarray(v) for n, v in runtime.state().items()})
        return {"loss": next_loss(runtime)}
    found = checkpoints.resume(lambda found: runtime.restore(found.tensors))
    assert_same_bits(directory, runtime.state())
    report = {"step": found.step, "loss": next_loss(runtime)}
    if role == "crash":
        _die_while_writing(process.index)
    if role in ("crash", "resume"):
        checkpoints.save(STEPS + 1, runtime.state())
    return report


def _die_while_writing(index):
    """Process 1 writes half of its pieces and is killed."""
    write = checkpoint_module.write_pieces

    def write_half(prefix, pieces):
        pieces = list(pieces)
        write(prefix, pieces[: len(pieces) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    if index == 1:
        checkpoint_module.write_pieces = write_half


if __name__ == "__main__":
    main(*sys.argv[1:])
