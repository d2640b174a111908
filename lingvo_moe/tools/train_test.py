"""lingvo-moe-train as its user runs and ends it."""

import os
import signal
import subprocess
import sys

import pytest

from lingvo_moe.system import lock
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.logdirs import SMALLEST_DENSE
from lingvo_moe.testing.tiny_world import dataset
from lingvo_moe.testing.waiting import wait_until


@pytest.mark.slow
def test_one_run_at_a_time_and_sigterm_saves_and_ends_it_with_143(tmp_path):
    command = [
        *(sys.executable, "-m", "lingvo_moe.tools.train", "--model=tiny.Dense"),
        *(f"--data={dataset().directory}", f"--logdir={tmp_path}", "--max_steps=1000000"),
        *(f"--set={text}" for text in (*SMALLEST_DENSE, "input.virtual_shards=2")),
    ]
    pipe = {"stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipe) as process:
        try:
            lines = iter(process.stderr.readline, "")
            assert (
                next(line for line in lines if line.startswith("Comp")) == "Compiling the step …\n"
            )
            in_use = rf"{tmp_path} is in use by process {process.pid} on "
            with pytest.raises(ValueError, match=in_use), lock.hold(tmp_path):
                pass
            os.killpg(process.pid, signal.SIGTERM)  # to the workers too, as Ctrl-C in a terminal
            rest = "".join(lines)
        finally:
            process.kill()
    assert process.returncode == 143
    assert "SIGTERM: saving after the current step or evaluation, then ending." in rest
    assert "the same command resumes from there." in rest
    assert "Traceback" not in rest
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    assert checkpoint.name.startswith("step_")
    assert not (tmp_path / lock.FILE).exists()


@pytest.mark.slow
def test_it_goes_on_without_its_log_and_saves_when_its_terminal_goes(tmp_path):
    command = [
        *(sys.executable, "-m", "lingvo_moe.tools.train", "--model=tiny.Dense"),
        *(f"--data={dataset().directory}", f"--logdir={tmp_path}"),
        *(f"--set={text}" for text in (*SMALLEST_DENSE, "train.log_every=1")),
    ]

    def has_logged():
        return sum(path.stat().st_size for path in tmp_path.glob("events/*")) > 10_000

    together = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}  # 2>&1 | head -1
    never = [f"--set=train.{name}_every=1000000" for name in ("checkpoint", "eval")]
    with subprocess.Popen([*command, *never, "--max_steps=1000000"], **together) as process:
        try:
            assert process.stdout.readline()
            process.stdout.close()
            wait_until(has_logged, "training writes events")
            process.send_signal(signal.SIGHUP)
            assert process.wait() == 129
        finally:
            process.kill()
    checkpoints = ModelDir.open(tmp_path).checkpoints
    (last,) = checkpoints.steps()
    with open("/dev/full", "w") as full:
        subprocess.run([*command, f"--max_steps={last + 3}"], stderr=full, check=True)
    assert checkpoints.steps()[-1] == last + 3
