import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from lingvo_moe.config import plugins
from lingvo_moe.config.params import override
from lingvo_moe.data.input_workers import packed_by
from lingvo_moe.data.pipeline import InputParams, Part, TrainInput
from lingvo_moe.testing.tiny_world import dataset

# Some examples are longer than a row.
PARAMS = InputParams(batch_size=6, source_length=12, target_length=12, virtual_shards=3)

_MINE = """
import dataclasses, os, sys
from pathlib import Path
from lingvo_moe.data import virtual_shard
from lingvo_moe.data.modifiers.base import Body, Modifier

virtual_shard.MOST_SKIPPED = 100

@dataclasses.dataclass(frozen=True, kw_only=True)
class Backwards(Modifier):
    def apply(self, body, context):
        print("applied")
        large = {"tensorflow", "jax", "jaxlib"} & set(sys.modules)
        Path(__file__).with_name(f"process-{os.getpid()}").write_text(" ".join(large))
        return Body(body.source[::-1], body.target)
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch, fresh_plugins):
    """A file with a modifier; in every process that imports it, few examples may be too long."""
    monkeypatch.setattr("lingvo_moe.data.virtual_shard.MOST_SKIPPED", 0)  # set back at the end
    path = tmp_path / f"mine_{os.getpid()}.py"
    path.write_text(_MINE)
    plugins.import_plugins([str(path)])
    return path


def _input(params=PARAMS, data=None, part=None):
    return TrainInput(data or dataset(), params, 5, part)


def _assert_equal(ours, expected):
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def _processes(pool):
    return [worker._process for worker in pool._workers]


def test_batches_states_and_counts_are_those_of_one_process():
    """Also where another number of workers resumes; there are never more than virtual shards."""
    plain, state = _input(), None
    for workers, started in ((2, 2), (9, 3), (1, 1)):
        with packed_by(workers, _input()) as pool:
            if state is not None:
                pool.restore(state)
            skipped = plain.skipped
            _assert_equal(pool.state(), plain.state())
            for _ in range(3):
                _assert_equal(pool.next_batch(), plain.next_batch())
                _assert_equal(pool.state(), plain.state())
            assert pool.skipped == plain.skipped - skipped
            assert len(_processes(pool)) == started
            state = pool.state()
        assert all(process.poll() is not None for process in _processes(pool))
    assert plain.skipped > 0


def test_a_host_packs_and_saves_its_part_with_any_number_of_workers():
    """The second host: both pack the middle virtual shard, and the first saves it."""
    rows = np.array([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]], bool)
    part = Part.of(rows, 1, 3)
    alone = _input(part=part)
    with packed_by(2, _input(part=part)) as pool:
        for _ in range(2):
            _assert_equal(pool.next_batch(), alone.next_batch())
        ours, expected = pool.state(), alone.state()
    assert ours["batches"] == expected["batches"] == 2
    for name in ("draws", "counters", "waiting"):
        assert ours[name].shape == expected[name].shape
        (found,), (wanted,) = (one[name].addressable_shards for one in (ours, expected))
        assert found.index == wanted.index == (slice(2, 3),)
        np.testing.assert_array_equal(found.data, wanted.data)


@pytest.mark.slow
def test_workers_are_small_know_plugins_and_leave_signals_to_the_trainer(plugin):
    params = override(PARAMS, ["modifiers=(Backwards(share=0.5),)"])
    plain = _input(params)
    with packed_by(2, _input(params)) as pool:
        for number in range(40):  # more than the workers pack in advance
            _assert_equal(pool.next_batch(), plain.next_batch())
            for process in _processes(pool)[: 2 * (number == 0)]:
                process.send_signal(signal.SIGINT)
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGHUP)
        wanted = {plugin.with_name(f"process-{process.pid}") for process in _processes(pool)}
    assert wanted <= set(plugin.parent.glob("process-*"))
    assert {path.read_text() for path in wanted} == {""}


def _take(source, count):
    for _ in range(count):
        source.next_batch()


def test_a_worker_that_is_killed_ends_the_input():
    with packed_by(2, _input()) as pool:
        pool.next_batch()
        _, process = _processes(pool)
        process.kill()
        with pytest.raises(OSError, match="Input worker") as caught:
            _take(pool, 100)  # more than it has packed in advance
    assert "2 of 2" in str(caught.value)
    assert "SIGKILL" in str(caught.value)


_PARENT = """
import sys, time
from pathlib import Path
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.input_workers import packed_by
from lingvo_moe.data.pipeline import InputParams, TrainInput
source = TrainInput(Dataset.load(Path(sys.argv[1])), InputParams(batch_size=16), 1)
with packed_by(2, source) as pool:
    pool.next_batch()
    print("packed", flush=True)
    time.sleep(600)
"""


def test_workers_end_in_silence_when_their_parent_is_killed():
    command = [sys.executable, "-c", _PARENT, str(dataset().directory)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout.readline() == "packed\n"
        process.kill()
        killed = time.monotonic()
        # The workers have the other end of this pipe too.
        assert process.stderr.read() == ""
        assert time.monotonic() - killed < 30
