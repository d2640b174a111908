"""Plain processes, without TensorFlow: each runs this file as a script, with a stub for a model.

The stub writes upper case, notes each sentence in a file, and hangs at the sentence "hang".
"""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lingvo_moe.jobs.shards import Shards, translate_shards
from lingvo_moe.system import lock
from lingvo_moe.system.files import MANIFEST
from lingvo_moe.testing.waiting import wait_until

JOB = {"step": "7"}


def translate(source, output, notes, hang=False, job=JOB, report=lambda line: None, main=True):
    """Everything that the tool does with a file, in shards of two lines."""

    def model(shard, progress):
        for sentence in shard.sentences:
            with notes.open("a") as file:
                file.write(f"{sentence}\n")
            if hang and sentence == "hang":
                time.sleep(300)
            progress(1)
            yield f"{sentence.upper()}\n"

    shards = Shards(source, output, 2)
    work = shards.survey()
    with shards.merged() if main else contextlib.nullcontext():
        translate_shards(shards, work, job, model, report)


def start(*paths):
    """A process that translates and hangs."""
    return subprocess.Popen([sys.executable, __file__, *map(str, paths)])


def wait_for(path, text):
    wait_until(lambda: path.exists() and text in path.read_text(), f"{text!r} in {path}")


@pytest.fixture
def notes(tmp_path):
    return tmp_path / "notes"


class TestFile:
    LINES = ("a", "b", "c\rc", "\ufeffd", "e", "hang", "g\u2028g", "h", "")

    @pytest.fixture
    def source(self, tmp_path):
        path = tmp_path / "source"
        path.write_bytes("".join(f"{line}\n" for line in self.LINES).encode())
        return path

    @pytest.fixture
    def expected(self):
        return "".join(f"{line.upper()}\n" for line in self.LINES).encode()

    def test_a_killed_run_goes_on_where_it_was(self, tmp_path, source, expected, notes):
        output = tmp_path / "output"
        process = start(source, output, notes, "hangs alone")
        wait_for(notes, "hang")
        with pytest.raises(lock.HeldError, match="in use"):
            translate(source, output, notes)
        process.kill()
        process.wait()
        parts = tmp_path / "output.parts"
        assert sorted(p.name for p in parts.iterdir() if p.name[0] != ".") == [
            "000000000001",
            "000000000003",
        ]
        assert not output.exists()
        notes.unlink()
        translate(source, output, notes)
        assert output.read_bytes() == expected
        assert notes.read_text().split("\n") == ["e", "hang", "g\u2028g", "h", "", ""]
        assert not parts.exists()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "output", "source"]

    def test_a_merge_that_was_killed_leaves_nothing(self, tmp_path):
        shards = Shards(tmp_path / "in", tmp_path / "out", 2)
        shards.input.touch()
        shards.directory.mkdir()
        for path in (shards.directory / MANIFEST, tmp_path / ".out.partial-1"):
            path.touch()
        with shards.merged():
            pass
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]

    @pytest.mark.parametrize(
        ("job", "line", "message"),
        [
            ({"step": "8"}, "", "step=8"),
            (JOB | {"new": "x"}, "", "new=x"),
            (JOB, "one more\n", "with input"),
        ],
    )
    def test_shards_of_another_job_are_not_used(self, tmp_path, source, notes, job, line, message):
        with pytest.raises(IsADirectoryError):  # of the notes, in the first shard
            translate(source, tmp_path / "output", tmp_path)
        source.write_text(source.read_text() + line)
        with pytest.raises(ValueError, match=message):
            translate(source, tmp_path / "output", notes, job=job)

    def test_an_input_that_changes_meanwhile(self, tmp_path, source, notes, monkeypatch):
        monkeypatch.setattr(time, "sleep", lambda _: source.write_text("other\n"))
        with pytest.raises(ValueError, match="has changed"):
            translate(source, tmp_path / "output", notes, hang=True)
        assert not (tmp_path / "output").exists()

    @pytest.mark.parametrize("make", ["symlink_to", "hardlink_to"])
    def test_the_input_is_no_output(self, tmp_path, source, notes, make):
        getattr(tmp_path / "link", make)(source)
        for output in (source, tmp_path / "link"):
            with pytest.raises(ValueError, match="same file"):
                translate(source, output, notes)
        assert source.read_text().startswith("a\nb\n")
        assert not notes.exists()

    def test_the_user_s_files_stay(self, tmp_path, source, notes):
        parts = tmp_path / "output.parts"
        parts.mkdir()
        (parts / "mine").write_text("")
        with pytest.raises(ValueError, match="not made"):
            translate(source, tmp_path / "output", notes)
        assert not (tmp_path / "output").exists()


def test_a_dead_worker_s_shard_is_taken_over(tmp_path):
    """The worker hangs in a shard. Another process does the rest, and waits for that one."""
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("hang\nb\nc\nd\ne\n")
    worker = start(source, output, tmp_path / "worker", "hangs")
    wait_for(tmp_path / "worker", "hang")
    other = start(source, output, tmp_path / "other")
    wait_for(tmp_path / "other", "e")
    assert other.poll() is None
    worker.kill()
    assert other.wait(60) == 0
    assert (tmp_path / "other").read_text().split() == ["c", "d", "e", "hang", "b"]
    assert output.read_text() == "HANG\nB\nC\nD\nE\n"
    worker.wait()


def test_several_at_once_translate_each_shard_once(tmp_path):
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("".join(f"line {number}\n" for number in range(400)))
    shards = Shards(source, output, 2)
    notes = [tmp_path / name for name in "abc"]
    with shards.merged():
        workers = [start(source, output, path, "works") for path in notes]
        assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    lines = "".join(path.read_text() for path in notes if path.exists()).splitlines()
    assert sorted(lines) == sorted(source.read_text().splitlines())
    assert output.read_text() == source.read_text().upper()


if __name__ == "__main__":
    source, output, notes, *role = sys.argv[1:]
    translate(
        Path(source),
        Path(output),
        Path(notes),
        hang="hangs" in "".join(role),
        main=role not in (["hangs"], ["works"]),
    )
