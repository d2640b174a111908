"""Translates files in shards, in any number of processes; an interrupted run can resume.

A shard is a piece of work (`core/pieces.py`). A resumed run translates only the missing shards, and
the result has the same bytes as that of an uninterrupted run. All processes that see the
directories, also on other machines, share the work.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from lingvo_moe.core import lock
from lingvo_moe.core.files import (
    MANIFEST,
    check_file,
    check_length,
    remove_partials,
    write_whole,
)
from lingvo_moe.core.lines import read_lines
from lingvo_moe.core.pieces import begin, take
from lingvo_moe.core.progress import Progress

_MAKER = "lingvo-moe-translate"
_CURE = "Use the same model, flags and input, or remove it to start again."


class TextShard(NamedTuple):
    """A part of the input.

    Attributes:
        source: the input file.
        first_line: line number of its first sentence in that file.
        sentences: an iterable that can be read once.
        output: the file of its translations.
    """

    source: Path
    first_line: int
    sentences: Iterable[str]
    output: Path


# (shard, function to call with numbers of finished sentences) -> lines
TranslateShard = Callable[[TextShard, Callable[[int], None]], Iterable[str]]


@dataclasses.dataclass(frozen=True)
class FileShards:
    """A file, split every `block` lines; shards are in OUTPUT.parts until all are finished."""

    input: Path
    output: Path
    block: int

    @property
    def directory(self) -> Path:
        """The directory of the shards."""
        return self.output.with_name(f"{self.output.name}.parts")

    def check(self) -> None:
        """Raises OSError if the output cannot be written, ValueError if it is the input."""
        check_file(self.output, self.input)

    def __iter__(self) -> Iterator[TextShard]:
        left = read_lines(self.input)
        for first in itertools.count(1, self.block):
            if not (block := list(itertools.islice(left, self.block))):
                return
            yield TextShard(self.input, first, block, self.directory / f"{first:012}")

    @contextlib.contextmanager
    def merged(self) -> Iterator[None]:
        """Merges the shards into the output when the block ends, and removes them.

        Raises:
            HeldError: another process works on the same output.
        """
        with lock.hold(self.directory) as locked:
            if locked:
                remove_partials(self.output)  # of a killed run
            yield
            parts = [shard.output for shard in self]
            write_whole(self.output, (part.read_bytes() for part in parts))
            for path in (*parts, self.directory / MANIFEST):
                path.unlink()
        with contextlib.suppress(OSError):  # the user has put files there
            self.directory.rmdir()


@dataclasses.dataclass(frozen=True)
class DirectoryShards:
    """A directory where each file is a shard; its translations have the same name in OUTPUT."""

    input: Path
    output: Path

    @property
    def directory(self) -> Path:
        """The directory of the shards."""
        return self.output

    def check(self) -> None:
        """Raises ValueError if the names of files or directories are not possible."""
        if self.output.exists() and not self.output.is_dir():
            raise ValueError(f"--output={self.output} is a file; give a directory, like --input.")
        if self.output.resolve().is_relative_to(self.input.resolve()):
            raise ValueError(f"--output={self.output} is inside --input; give another directory.")
        names: dict[str, Path] = {}
        for path in self._files():
            if not path.is_file():
                raise ValueError(f"{path} is not a file; --input must be a directory of files.")
            check_length(path)
            if (other := names.setdefault(_name(path), path)) != path:
                raise ValueError(f"{other} and {path} have the same output; rename one of them.")
        if not names:
            raise ValueError(f"{self.input} has no files to translate.")

    def __iter__(self) -> Iterator[TextShard]:
        for path in self._files():
            yield TextShard(path, 1, read_lines(path), self.output / _name(path))

    def merged(self) -> contextlib.AbstractContextManager[None]:
        """Does nothing: files are not merged, and other processes may work on the same output."""
        return contextlib.nullcontext()

    def _files(self):
        return sorted(path for path in self.input.iterdir() if not path.name.startswith("."))


class Survey(NamedTuple):
    """The work of a run.

    Attributes:
        total: number of sentences.
        done: number of sentences in finished shards.
        finished: outputs of finished shards.
        sha256: of all sentences.
    """

    total: int
    done: int
    finished: frozenset[Path]
    sha256: str


def survey(shards: FileShards | DirectoryShards) -> Survey:
    """Reads all sentences, so that an error in the last is found before hours of work.

    Raises:
        ValueError, OSError: as `read_lines`, or the output cannot be made.
    """
    shards.check()
    digest, total, done, finished = hashlib.sha256(), 0, 0, set()
    for shard in shards:
        digest.update(os.fsencode(f"{shard.output.name}\n"))
        before = total
        for sentence in shard.sentences:
            digest.update(f"{sentence}\n".encode())
            total += 1
        if shard.output.exists():
            finished.add(shard.output)
            done += total - before
    return Survey(total, done, frozenset(finished), digest.hexdigest())


def translate_shards(
    shards: FileShards | DirectoryShards,
    work: Survey,
    job: Mapping[str, str],
    translate: TranslateShard,
    report: Callable[[str], None],
) -> None:
    """Translates the shards that no other process translates; at the end all are finished.

    Args:
        shards: the input and the output.
        work: the survey of the shards.
        job: everything that determines the translations, by name; an output with other values is an
            error.
        translate: the model.
        report: takes lines of progress, of all processes together: a shard of another process
            counts when it is finished.

    Raises:
        ValueError: the directory belongs to another job, or the input changes meanwhile.
    """
    begin(shards.directory, {"maker": _MAKER, **job, "input": work.sha256}, _CURE)
    progress = Progress(report, work.total, work.done)
    of_others: dict[Path, int] = {}  # number of sentences of each shard of another process

    def count_finished():
        for path in [path for path in of_others if path.exists()]:
            progress(of_others.pop(path))

    for shard in shards:
        if shard.output not in work.finished and not _take(shard, translate, progress):
            of_others[shard.output] = sum(1 for _ in shard.sentences)
        count_finished()
    for shard in shards:  # again, because a process that had one may have died
        if _take(shard, translate, progress, wait=True):
            of_others.pop(shard.output, None)
        count_finished()
    if survey(shards).sha256 != work.sha256:
        raise ValueError(
            f"{shards.input} has changed during translation. Remove {shards.directory} and run the "
            f"command again."
        )


def _take(shard, translate, progress, wait=False):
    """Translates a shard; False if it is finished, or held by another process."""
    path = shard.output
    return take(path, lambda: write_whole(path, translate(shard, progress)), wait)


def _name(path):
    """The name of a file's translations, which are not compressed."""
    return path.stem if path.suffix in (".gz", ".zst") else path.name
