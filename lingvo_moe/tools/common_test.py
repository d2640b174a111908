"""Help, errors and Ctrl-C, the same in every tool."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import lingvo_moe as lm
from lingvo_moe.testing.commands import error_of, succeed
from lingvo_moe.tools import common
from lingvo_moe.tools.common import NAMES, Flag

# The modules that are tools; the others are what tools share.
TOOLS = sorted(
    path.stem
    for path in Path(common.__file__).parent.glob("[a-z]*.py")
    if "\n@common.tool(" in path.read_text()
)


@pytest.fixture
def new_flags():
    """Calls a function and returns the names of the flags it defines, which go when a test ends."""
    common.app.define_help_flags()  # absl defines them once a process
    before = set(common.FLAGS)

    def names(define):
        define()
        return set(common.FLAGS) - before

    yield names
    for name in set(common.FLAGS) - before:
        delattr(common.FLAGS, name)


def test_home_directory_of_flags(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    given = ["tool", "--output=~/x", "--to=~", "--set=a=~/b", "~/c=~/d", "--", "--input=~/x"]
    assert common.at_home(given) == ["tool", "--output=/home/ada/x", *given[2:]]


@pytest.mark.parametrize("flag", ["--output=gs://bucket/data", "--corpus=s3://bucket/text"])
def test_a_bucket_is_no_directory(flag, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = f"--corpus={tmp_path}", f"--output={tmp_path}/data", flag
    assert f"{flag} is not a local path" in error_of("prepare", *given)
    with pytest.raises(ValueError, match=r"^output=gs://bucket/x is not a local path"):
        lm.prepare([], "gs://bucket/x")
    assert not list(tmp_path.iterdir())


def test_wrong_flags_are_one_line():
    assert error_of("train") == "error: Give --model and --data and --logdir; --help explains them."
    assert "'max_step'. Did you mean: max_steps? --help" in error_of("train", "--max_step=3")
    assert "--max_steps" in succeed("train", "-h").stdout
    assert succeed("train", "--version").stdout == f"lingvo_moe {lm.__version__}\n"


def test_names_of_a_repeated_flag_add_up(new_flags):
    found, flag = [], Flag("people", NAMES, None, "Some.")

    def parse():
        main = common.tool([flag])(lambda: found.append(common.FLAGS.people))
        main(["tool", "--people=ada,bob", "--people=eve", "--people="])

    assert "people" in new_flags(parse)
    assert found == [["ada", "bob", "eve", ""]]  # an empty list is not all


def test_the_tools_are_found():
    assert {"train", "translate", "export", "models", "prepare"} <= set(TOOLS)
    assert "common" not in TOOLS


@pytest.mark.parametrize("tool", TOOLS)
def test_a_console_script_s_help_shows_its_flags(tool, new_flags, monkeypatch, capsys):
    module = importlib.import_module(f"lingvo_moe.tools.{tool}")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys.modules["__main__"], "__doc__", None)

    def show_help():
        with pytest.raises(SystemExit, match="0"):
            module.main([f"/usr/bin/lingvo-moe-{tool}", "--help"])

    assert new_flags(show_help)
    shown = capsys.readouterr().out
    assert shown.startswith(module.__doc__)
    names = [*(flag.name for flag in module.TABLE), "debug"]
    missing = [n for n in names if f"--{n}:" not in shown and f"]{n}:" not in shown]
    assert not missing


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ValueError("size must be > 0, got 0."), 1, "error: size must be > 0, got 0."),
        (OSError(28, "No space left"), 1, "error: [Errno 28] No space left"),
        (tf.errors.DataLossError(None, None, "bad block"), 1, "error: bad block"),
        (ValueError("a \x1b[31mred\x1b[0m name"), 1, r"error: a \x1b[31mred\x1b[0m name"),
        (ValueError("one\n\ntwo"), 1, "error: one … (--debug shows all)"),
        (MemoryError(), 1, "error: Memory or disk space is exhausted (MemoryError)."),
        (
            tf.errors.ResourceExhaustedError(None, None, "OOM"),
            1,
            "error: Memory or disk space is exhausted ",
        ),
        (KeyError("theta"), 70, "internal error: KeyError: 'theta' ("),
    ],
)
def test_every_error_is_one_line(error, status, line, monkeypatch, capsys):
    def fail():
        raise error

    with pytest.raises(SystemExit) as end, common.one_line_errors():
        fail()
    assert end.value.code == status
    printed = capsys.readouterr().err
    assert printed.startswith(line)
    assert printed.count("\n") == 1
    assert "common_test.py:" in printed or status == 1
    monkeypatch.setattr(common.FLAGS["debug"], "value", True)
    with pytest.raises(type(error)), common.one_line_errors():
        fail()


@pytest.mark.parametrize(
    ("command", "flag", "needed"),
    [
        ("train --model=x --data=x --logdir=x", "--mesh=data:2", "with --runtime=spmd"),
        ("export --logdir=x --output=x", "--languages=de", "with --prune"),
        ("prepare --corpus=x --output=x", "--new_pieces=5", "with --extend"),
    ],
)
def test_a_flag_without_effect_is_an_error(command, flag, needed):
    tool, *flags = command.split()
    assert f"error: {flag} has an effect only {needed}" in error_of(tool, *flags, flag)


def test_a_full_disk_is_an_error_though_output_is_written_last(monkeypatch, capsys):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as end, common.one_line_errors():
            print("line")
    assert end.value.code == 1
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device\n"


def test_ctrl_c_while_modules_are_imported_is_one_line():
    script = (
        "import atexit, importlib.abc, os, signal, sys\n"
        "atexit.register(os.abort)\n"  # as libraries that still run may crash
        "class Press(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'tensorflow': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Press())\n"
        "import lingvo_moe.tools.train"
    )
    result = _python(script)
    assert result.returncode == 130
    assert result.stderr == "interrupted\n"


def _python(script):
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100
    )


@pytest.mark.parametrize("error", ["ValueError('bad')", "None + 1", "{}['x']"])
def test_an_error_in_a_plug_in_names_its_line(error, tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(f"def route():\n    {error if '(' not in error else f'raise {error}'}\n")
    monkeypatch.setattr(common, "source_files", lambda: [file])
    space = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    with pytest.raises((ValueError, TypeError, KeyError)) as raised:
        space["route"]()
    status, line = common.status_and_line(raised.value)
    assert status == 1
    assert line.startswith(f"error: in the plug-in {file}:2: {raised.type.__name__}: ")
