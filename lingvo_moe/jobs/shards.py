"""Translates a file in shards, in any number of processes; an interrupted run can resume.

A shard is a piece of work (`system/pieces.py`). A resumed run translates only the missing shards,
and the result has the same bytes as that of an uninterrupted run.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lingvo_moe.system import lock
from lingvo_moe.system.files import MANIFEST, check_file, remove_partials, write_whole
from lingvo_moe.system.lines import blocks, read_lines
from lingvo_moe.system.pieces import begin, take
from lingvo_moe.system.progress import Progress

_MAKER = "lingvo-moe-translate"
_CURE = "Use the same model, flags and input, or remove it to start again."


class Shard(NamedTuple):
    """A part of the input.

    Attributes:
        first_line: line number of its first sentence.
        sentences: of the shard.
        output: the file of its translations.
    """

    first_line: int
    sentences: Sequence[str]
    output: Path


# (shard, function to call with numbers of finished sentences) -> lines
TranslateShard = Callable[[Shard, Callable[[int], None]], Iterable[str]]


class Survey(NamedTuple):
    """The number of sentences, the number of those in finished shards, and the SHA-256 of all."""

    total: int
    done: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Shards:
    """A file, split every `block` lines; shards are in OUTPUT.parts until all are finished."""

    input: Path
    output: Path
    block: int

    @property
    def directory(self) -> Path:
        """The directory of the shards."""
        return self.output.with_name(f"{self.output.name}.parts")

    def __iter__(self) -> Iterator[Shard]:
        starts = itertools.count(1, self.block)
        for first, block in zip(starts, blocks(read_lines(self.input), self.block), strict=False):
            yield Shard(first, block, self.directory / f"{first:012}")

    def survey(self) -> Survey:
        """Reads all sentences, so that an error in the last is found before hours of work.

        Raises:
            ValueError, OSError: as `read_lines`, or the output cannot be made, or is the input.
        """
        check_file(self.output, self.input)
        digest, total, done = hashlib.sha256(), 0, 0
        for shard in self:
            digest.update("".join(f"{sentence}\n" for sentence in shard.sentences).encode())
            total += len(shard.sentences)
            done += len(shard.sentences) * shard.output.exists()
        return Survey(total, done, digest.hexdigest())

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


def translate_shards(
    shards: Shards,
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
    finished = set(shards.directory.iterdir())
    of_others: dict[Path, int] = {}  # number of sentences of each shard of another process
    for wait in (False, True):  # again, because a process that had one may have died
        for shard in shards:
            if shard.output not in finished:
                of_others[shard.output] = len(shard.sentences)
                write = functools.partial(_write, shard, translate, progress)
                if take(shard.output, write, wait):
                    del of_others[shard.output]
                    finished.add(shard.output)
            for path in [path for path in of_others if path.exists()]:
                progress(of_others.pop(path))
                finished.add(path)
    if shards.survey().sha256 != work.sha256:
        raise ValueError(
            f"{shards.input} has changed during translation. Remove {shards.directory} and run the "
            f"command again."
        )


def _write(shard, translate, progress):
    write_whole(shard.output, translate(shard, progress))
