import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from lingvo_moe.system import lock
from lingvo_moe.system.pieces import take

HOLD = """
import sys, time
from pathlib import Path
from lingvo_moe.system import lock
with lock.hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process, which holds tmp_path."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_and_told_who_holds_it(tmp_path, holder):
    with pytest.raises(ValueError, match=f"process {holder.pid}"), lock.hold(tmp_path):
        pass
    assert json.loads((tmp_path / lock.FILE).read_text())["pid"] == holder.pid


def test_a_dead_holder_does_not_keep_it(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert (tmp_path / lock.FILE).exists()
    with lock.hold(tmp_path):
        assert json.loads((tmp_path / lock.FILE).read_text())["pid"] == os.getpid()
    assert not (tmp_path / lock.FILE).exists()


def test_one_that_waits_gets_it_when_the_holder_dies(tmp_path, holder):
    killed = threading.Event()

    def kill():
        killed.set()
        holder.kill()

    threading.Timer(0.3, kill).start()
    with lock.hold(tmp_path, wait=True):
        assert killed.is_set()
        assert json.loads((tmp_path / lock.FILE).read_text())["pid"] == os.getpid()


def test_an_error_within_frees_it_and_leaves_no_new_directory(tmp_path):
    with pytest.raises(KeyError), lock.hold(tmp_path / "new"):
        raise KeyError
    assert not (tmp_path / "new").exists()
    with lock.hold(tmp_path / "new"):
        (tmp_path / "new" / "file").write_text("kept")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]
    with lock.hold(tmp_path / "deep" / "new"):
        pass
    assert not (tmp_path / "deep").exists()


def test_a_file_removed_between_opening_and_locking_is_no_lock(tmp_path, monkeypatch):
    """The first attempt locks a file that its holder has just removed; the second counts."""
    original, calls = fcntl.flock, []

    def late(descriptor, operation):
        if not calls:
            os.unlink(tmp_path / lock.FILE)
        calls.append(descriptor)
        original(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with lock.hold(tmp_path):
        assert len(calls) == 2
        assert (tmp_path / lock.FILE).exists()


def test_a_link_is_no_lock(tmp_path):
    (tmp_path / lock.FILE).symlink_to(tmp_path / "nowhere" / "file")
    with pytest.raises(OSError, match="symbolic links"), lock.hold(tmp_path):
        pass


def test_a_file_system_without_locks(tmp_path, monkeypatch, caplog):
    def refuse(descriptor, operation):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock.hold(tmp_path) as locked:
        assert not locked
    (tmp_path / ".a.partial-1").touch()  # another process may write it now
    assert take(tmp_path / "a", lambda: (tmp_path / "a").touch())
    assert (tmp_path / ".a.partial-1").exists()
    assert "without locks" in caplog.text


def test_one_that_waits_gets_it_when_the_holder_removes_its_empty_directory(tmp_path):
    held, directory = threading.Event(), tmp_path / "new"

    def hold():
        with lock.hold(directory):
            held.set()
            time.sleep(0.3)  # the other one waits meanwhile

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    with lock.hold(directory, wait=True):
        assert json.loads((directory / lock.FILE).read_text())["pid"] == os.getpid()
    holder.join()
