import gc
import os
import signal
import subprocess
import sys
import time

import pytest

from lingvo_moe.system import console


@pytest.fixture
def hooks(monkeypatch):
    """Python's own hooks are back when the test ends."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    console.install((ValueError,))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it
    yield
    signal.signal(signal.SIGINT, before)


def end(error):
    """Does what Python does with an exception that nothing catches; returns the exit status."""
    with pytest.raises(SystemExit) as ended:
        sys.excepthook(type(error), error, None)
    return ended.value.code


def test_errors_of_the_user_are_one_line(hooks, capsys):
    assert end(ValueError("size must be > 0")) == 1
    assert capsys.readouterr().err == "error: size must be > 0\n"


def test_a_reader_that_goes_away_ends_the_process_in_silence(hooks, monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:  # whose end would fail if the line were still to be written
        monkeypatch.setattr(sys, "stdout", closed)
        print("line")
        with pytest.raises(BrokenPipeError) as gone:
            sys.stdout.flush()
        assert end(gone.value) == 141
    assert not capsys.readouterr().err


def test_ctrl_c_in_a_callback_of_the_garbage_collector_is_not_lost(hooks):
    """JAX has such a callback; Python ignores errors in them."""

    def press(phase, info):
        gc.callbacks.remove(press)
        raise KeyboardInterrupt

    gc.callbacks.append(press)
    gc.collect()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(10)


@pytest.mark.parametrize(
    ("closed", "status", "out", "error"),
    [
        ((), 0, "line\n", "note\n"),
        ((1,), 1, "", "OSError: Standard output is closed"),
        ((2,), 0, "line\n", ""),
        ((0, 1, 2), 1, "", ""),
    ],
)
def test_closed_streams_are_no_other_files_and_lose_no_result(closed, status, out, error, tmp_path):
    script = (
        "import sys; from lingvo_moe.system import console; console.install();"
        f"open({str(tmp_path / 'file')!r}, 'w').close();"
        "print('note', file=sys.stderr); print('line')"
    )
    made = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        preexec_fn=lambda: [os.close(number) for number in closed],
    )
    assert (made.returncode, made.stdout) == (status, out)
    assert error in made.stderr
    assert (tmp_path / "file").read_text() == ""
