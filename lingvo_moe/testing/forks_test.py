import multiprocessing
from subprocess import TimeoutExpired

import pytest

from lingvo_moe.testing import forks


def test_if_one_does_not_end_none_is_left_running(tmp_path, monkeypatch):
    monkeypatch.setattr(forks, "SECONDS", 0.5)
    monkeypatch.setattr(forks, "_CONTEXT", multiprocessing.get_context("fork"))  # starts faster
    script = tmp_path / "sleep.py"
    script.write_text("import time; time.sleep(600)")
    started = [forks.Fork(str(script)) for _ in range(2)]
    with pytest.raises(TimeoutExpired):
        forks.wait_for_all(started)
    for fork in started:
        fork._process.join(60)
        assert not fork.is_alive()


def test_an_error_is_printed_before_exit_functions_end_the_process(tmp_path):
    script = tmp_path / "fail.py"
    script.write_text("import atexit, os; atexit.register(os._exit, 1); raise OSError('full disk')")
    ended = forks.Fork(str(script)).wait()
    assert ended.returncode == 1
    assert ended.stderr.endswith("OSError: full disk\n")
