"""Plain processes, without TensorFlow: each runs this file as a script, with a stub for a model.

The stub writes upper case, notes each sentence in a file, and hangs at the sentence "hang".
"""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lingvo_moe.core import lock
from lingvo_moe.core.files import MANIFEST
from lingvo_moe.tasks.shards import DirectoryShards, FileShards, survey, translate_shards
from lingvo_moe.testing.waiting import wait_until

JOB = {"step": "7"}


def translate(source, output, notes, hang=False, job=JOB, report=lambda line: None):
    """Everything that the tool does with a file, in shards of two lines, or a directory."""

    def model(shard, progress):
        for sentence in shard.sentences:
            with notes.open("a") as file:
                file.write(f"{sentence}\n")
            if hang and sentence == "hang":
                time.sleep(300)
            progress(1)
            yield f"{sentence.upper()}\n"

    shards = DirectoryShards(source, output) if source.is_dir() else FileShards(source, output, 2)
    work = survey(shards)
    with shards.merged():
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
        process = start(source, output, notes)
        wait_for(notes, "hang")
        with pytest.raises(lock.HeldError, match=r"output\.parts is in use by"):
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
        shards = FileShards(tmp_path / "in", tmp_path / "out", 2)
        shards.input.touch()
        shards.directory.mkdir()
        for path in (shards.directory / MANIFEST, tmp_path / ".out.partial-1"):
            path.touch()
        with shards.merged():
            pass
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]

    def test_a_finished_output_is_made_anew(self, tmp_path, source, expected, notes):
        for _ in range(2):
            translate(source, tmp_path / "output", notes)
            assert (tmp_path / "output").read_bytes() == expected
        assert notes.read_text().count("hang") == 2

    @pytest.mark.parametrize(
        ("job", "line", "message"),
        [
            ({"step": "8"}, "", "was started with step=7, but this run has step=8. Use the same"),
            (JOB | {"new": "x"}, "", "was started with new=None, but this run has new=x"),
            (JOB, "one more\n", "was started with input=[0-9a-f]{64}, but this run"),
        ],
    )
    def test_shards_of_another_job_are_not_used(self, tmp_path, source, notes, job, line, message):
        with pytest.raises(IsADirectoryError):  # of the notes, in the first shard
            translate(source, tmp_path / "output", tmp_path)
        source.write_text(source.read_text() + line)
        with pytest.raises(ValueError, match=f"output.parts {message}"):
            translate(source, tmp_path / "output", notes, job=job)

    def test_an_input_that_changes_meanwhile(self, tmp_path, source, notes, monkeypatch):
        monkeypatch.setattr(time, "sleep", lambda _: source.write_text("other\n"))
        with pytest.raises(ValueError, match="source has changed during translation"):
            translate(source, tmp_path / "output", notes, hang=True)
        assert not (tmp_path / "output").exists()

    @pytest.mark.parametrize("make", ["symlink_to", "hardlink_to"])
    def test_the_input_is_no_output(self, tmp_path, source, notes, make):
        getattr(tmp_path / "link", make)(source)
        for output in (source, tmp_path / "link"):
            with pytest.raises(ValueError, match=rf"output {output} is the same file as the input"):
                translate(source, output, notes)
        assert source.read_text().startswith("a\nb\n")
        assert not notes.exists()

    def test_the_user_s_files_stay(self, tmp_path, source, notes):
        parts = tmp_path / "output.parts"
        parts.mkdir()
        (parts / "mine").write_text("")
        with pytest.raises(ValueError, match="parts is not empty and was not made by lingvo"):
            translate(source, tmp_path / "output", notes)
        assert not (tmp_path / "output").exists()


class TestDirectory:
    @pytest.fixture
    def source(self, tmp_path):
        path = tmp_path / "source"
        path.mkdir()
        for name in ("1", "2", "3"):
            (path / name).write_text(f"first of {name}\n{'hang' if name == '1' else 'x'}\n")
        return path

    def test_a_dead_process_s_shard_is_taken_over(self, tmp_path, source, notes):
        """The first process hangs in shard 1. The second does 2 and 3 and waits for the first."""
        first = start(source, tmp_path / "output", notes)
        wait_for(notes, "hang")
        second = start(source, tmp_path / "output", tmp_path / "second", "healthy")
        wait_for(tmp_path / "second", "first of 3")
        assert second.poll() is None
        first.kill()
        assert second.wait(60) == 0
        done = (tmp_path / "second").read_text().splitlines()
        assert [line for line in done if line.startswith("first")] == [
            "first of 2",
            "first of 3",
            "first of 1",
        ]
        output = {p.name: p.read_text() for p in (tmp_path / "output").iterdir()}
        assert output.pop(".lingvo_moe.json")
        assert output == {
            "1": "FIRST OF 1\nHANG\n",
            "2": "FIRST OF 2\nX\n",
            "3": "FIRST OF 3\nX\n",
        }
        first.wait()

    def test_several_at_once_translate_each_shard_once(self, tmp_path, source):
        for number in range(40):
            (source / f"more {number}").write_text(f"{number}\n" * 20)
        notes = [tmp_path / name for name in "abc"]
        processes = [start(source, tmp_path / "output", path, "healthy") for path in notes]
        assert [process.wait(60) for process in processes] == [0, 0, 0]
        lines = sorted("".join(p.read_text() for p in notes if p.exists()).split("\n")[:-1])
        sources = "".join(path.read_text() for path in source.iterdir())
        assert lines == sorted(sources.split("\n")[:-1])
        for path in source.iterdir():
            assert (tmp_path / "output" / path.name).read_text() == path.read_text().upper()

    @pytest.mark.parametrize(
        ("files", "output", "message"),
        [
            (("a", "a.gz"), "output", "source/a and .*source/a.gz have the same output"),
            (("a",), "link", "is inside --input"),
        ],
    )
    def test_errors(self, tmp_path, notes, files, output, message):
        source = tmp_path / "source"
        source.mkdir()
        (tmp_path / "file").write_text("mine")
        (tmp_path / "link").symlink_to("source")
        for name in files:
            (source / name).parent.mkdir(exist_ok=True)
            (source / name).write_text("")
        with pytest.raises(ValueError, match=message):
            translate(source, tmp_path / output, notes)
        assert not (tmp_path / "output").exists()
        assert (tmp_path / "file").read_text() == "mine"


if __name__ == "__main__":
    source, output, notes, *healthy = sys.argv[1:]
    translate(Path(source), Path(output), Path(notes), hang=not healthy)
