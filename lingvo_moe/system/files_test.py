import json
import os
import shutil
from pathlib import Path

import pytest

from lingvo_moe.system.files import (
    MANIFEST,
    check_file,
    check_output,
    new_directory,
    read_json,
    write_whole,
)

MAKER = "lingvo-moe-test"


def _make(path, text="made", overwrite=False):
    with new_directory(path, MAKER, overwrite) as partial:
        (partial / "sub").mkdir()
        (partial / "sub" / "file").write_text(text)


def _fail_half_way(path):
    with new_directory(path, MAKER, overwrite=True) as partial:
        (partial / "file").write_text("half")
        raise KeyError


def _names(directory):
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


def test_a_file_is_replaced_whole_and_readable_by_others(tmp_path):
    path = tmp_path / "file"
    before = os.umask(0o027)
    try:
        write_whole(path, b"old")
        write_whole(path, (part for part in ("ne", "u")))
    finally:
        os.umask(before)
    assert path.read_text() == "neu"
    assert path.stat().st_mode & 0o777 == 0o640
    assert _names(tmp_path) == ["file"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, "old")

    def full(descriptor):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert _names(tmp_path) == ["file"]


def test_a_directory_appears_whole_and_can_be_made_again(tmp_path):
    path = tmp_path / "out"
    _make(path, "one")
    assert _names(path) == [MANIFEST, "sub/file"]
    with pytest.raises(ValueError, match="pass --overwrite"):
        _make(path, "two")
    _make(path, "three", overwrite=True)
    assert (path / "sub/file").read_text() == "three"
    assert os.listdir(tmp_path) == ["out"]


def test_an_error_leaves_what_was_there_and_nothing_else(tmp_path):
    path = tmp_path / "out"
    _make(path, "one")
    with pytest.raises(KeyError):
        _fail_half_way(path)
    assert (path / "sub/file").read_text() == "one"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(("overwrite", "message"), [(False, "pass --overwrite"), (True, "did not")])
def test_a_users_files_are_never_removed(tmp_path, overwrite, message):
    path = tmp_path / "out"
    _make(path)
    (path / "sub" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=message):
        _make(path, overwrite=overwrite)
    assert (path / "sub" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("edited", ["made, then edited", "edit"])
def test_a_file_that_the_user_changed_is_never_removed(tmp_path, edited):
    path = tmp_path / "out"
    _make(path, "made")
    (path / "sub/file").write_text(edited)
    later = (path / MANIFEST).stat().st_mtime_ns + 10**9
    os.utime(path / "sub/file", ns=(later, later))
    with pytest.raises(ValueError, match="changed since"):
        _make(path, overwrite=True)


def test_a_directory_of_another_maker_is_never_removed(tmp_path):
    path = tmp_path / "out"
    (path / "sub").mkdir(parents=True)
    (path / "sub" / "mine").write_text("mine")
    with pytest.raises(ValueError, match="not made"):
        _make(path, overwrite=True)
    (path / MANIFEST).write_text(json.dumps({"maker": "other", "files": {}}))
    with pytest.raises(ValueError, match="by other"):
        _make(path, overwrite=True)
    assert (path / "sub" / "mine").read_text() == "mine"


def test_what_a_killed_run_left_is_removed_and_nothing_else(tmp_path):
    killed = tmp_path / ".out.partial"
    (killed / "sub").mkdir(parents=True)
    (killed / MANIFEST).touch()
    (tmp_path / "out.partial").mkdir()
    _make(tmp_path / "out")
    assert set(os.listdir(tmp_path)) == {"out", "out.partial"}
    killed.mkdir()  # as after a kill before the manifest was made
    _make(tmp_path / "out", overwrite=True)
    killed.mkdir()
    (killed / "file").touch()  # this one is not of a run: it has no manifest
    with pytest.raises(FileExistsError):
        _make(tmp_path / "out", overwrite=True)
    assert killed.exists()


def test_where_a_link_points_is_made_and_replaced(tmp_path):
    link, disk = tmp_path / "out", tmp_path / "disk"
    disk.mkdir()
    link.symlink_to(disk)
    _make(link, "one")
    _make(link, "two", overwrite=True)
    assert link.is_symlink()
    assert (disk / "sub/file").read_text() == "two"
    assert sorted(os.listdir(tmp_path)) == ["disk", "out"]


def test_a_mount_cannot_be_replaced():
    with pytest.raises(ValueError, match="/proc is a mount"):
        check_output(Path("/proc"), MAKER)


def test_the_manifest_is_removed_last(tmp_path, monkeypatch):
    """A run that is killed while it removes leaves what the next one can remove."""
    left, remove = [], shutil.rmtree

    def stop(path):
        if not (path / MANIFEST).exists():
            return remove(path)
        left.extend(os.listdir(path))
        raise KeyboardInterrupt

    _make(tmp_path / "out")
    monkeypatch.setattr(shutil, "rmtree", stop)
    with pytest.raises(KeyboardInterrupt):
        _make(tmp_path / "out", overwrite=True)
    assert left == [MANIFEST]
    monkeypatch.undo()
    _make(tmp_path / "out", overwrite=True)
    assert os.listdir(tmp_path) == ["out"]


def test_two_runs_do_not_make_one_directory(tmp_path):
    path = tmp_path / "new" / "out"
    with new_directory(path, MAKER) as partial:
        (partial / "file").write_text("first")
        with pytest.raises(ValueError, match="in use"):
            _make(path)
    assert _names(path) == [MANIFEST, "file"]


def test_a_crash_between_the_two_renames_loses_nothing(tmp_path):
    path = tmp_path / "out"
    _make(path, "one")
    path.rename(tmp_path / ".out.replaced")
    with pytest.raises(ValueError, match="pass --overwrite"):
        _make(path, "two")
    assert (path / "sub/file").read_text() == "one"


def test_a_check_between_the_two_renames_changes_nothing(tmp_path, monkeypatch):
    path, rename = tmp_path / "out", os.rename
    _make(path, "one")

    def check(source, target):
        rename(source, target)
        if target.name == ".out.replaced":
            check_output(path, MAKER)

    monkeypatch.setattr(os, "rename", check)
    _make(path, "two", overwrite=True)
    assert (path / "sub/file").read_text() == "two"


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000])
def test_bad_json_is_an_error_that_names_the_file(tmp_path, text):
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"x\.json"):
        read_json(tmp_path / "x.json")


def test_a_link_s_target_is_replaced_and_a_device_written_to(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert _names(tmp_path) == ["file", "link"]  # and not to a pipe


@pytest.mark.parametrize("place", ["/dev/fd", "/proc/self/fd"])
def test_an_open_file_is_written_to_where_it_stands(tmp_path, place):
    """As with `{ echo head; tool --output=/dev/stdout; echo tail; } > file`."""
    number = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    (tmp_path / "link").symlink_to(f"{place}/{number}")
    os.write(number, b"head ")
    for path in (Path(f"{place}/{number}"), tmp_path / "link"):
        check_file(path)
        write_whole(path, "text ")
    os.write(number, b"tail")
    os.close(number)
    assert (tmp_path / "file").read_text() == "head text text tail"
    reader, writer = os.pipe()
    write_whole(Path(f"{place}/{writer}"), "into a pipe")
    assert os.read(reader, 100) == b"into a pipe"
    os.close(reader)
    os.close(writer)
    assert _names(tmp_path) == ["file"]


def test_a_name_that_is_too_long(tmp_path):
    write_whole(tmp_path / ("x" * 230), "text")
    with pytest.raises(OSError, match="most 230"):
        check_file(tmp_path / ("x" * 231))
    with new_directory(tmp_path / ("y" * 230), "test"):
        pass
    with pytest.raises(OSError, match="245 bytes"):
        check_output(tmp_path / "new" / ("y" * 245), "test")


def test_where_no_file_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    check_file(tmp_path / "file")
    check_file(tmp_path / "new")
    check_file(Path("/dev/null"))
    with pytest.raises(IsADirectoryError, match="a directory"):
        check_file(tmp_path)
    for place, why in (("missing/new", "not exist"), ("file/new", "is not a directory")):
        with pytest.raises(OSError, match=why):
            check_file(tmp_path / place)


def test_an_output_is_not_one_of_the_sources(tmp_path):
    source, other = tmp_path / "source", tmp_path / "other"
    source.touch()
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "hard").hardlink_to(source)
    for name in ("source", "link", "hard"):
        for path, read in ((tmp_path / name, source), (source, tmp_path / name)):
            with pytest.raises(ValueError, match="same file"):
                check_file(path, other, read)
    other.touch()
    check_file(other, source, tmp_path / "missing")
    check_file(Path("/dev/null"), Path("/dev/null"))
