"""Checkpoints: TensorFlow's bundle format in a directory that appears whole or not at all."""

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_moe.train.bundle import (
    StoredTensor,
    local_pieces,
    merge_bundles,
    open_bundle,
    write_pieces,
)

_PREFIX = "state"
_INFO = "info.json"


@dataclasses.dataclass(frozen=True)
class Process:
    """One of the processes that train together and share the directory of checkpoints.

    Attributes:
        index: which one, from 0.
        minimum: waits until every process has called it and returns the smallest of the values
            they gave.
    """

    index: int = 0
    minimum: Callable[[int], int] = lambda value: value


ALONE = Process()


class Checkpoint(NamedTuple):
    """step; tensors by name, read when asked for; info, whatever the writer said (JSON)."""

    step: int
    tensors: Mapping[str, StoredTensor]
    info: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Checkpointer:
    """Saves and restores under `directory/step_00001000/`.

    Each holds one TensorFlow bundle, readable with tf.train.load_checkpoint, and info.json. It is
    written beside its place and renamed, so a crash or a full disk leaves the earlier ones whole.
    Every process writes the pieces it holds; how the tensors were cut matters to no reader.

    Attributes:
        directory: where the checkpoints lie, on a file system that all processes share.
        keep: how many of the newest stay; the best one always stays too.
        process: which process this is. All of them call `save` and `read_latest` together.
    """

    directory: Path
    keep: int = 3
    process: Process = ALONE

    def save(self, step: int, tensors: Mapping[str, Any], info: Mapping[str, Any]) -> Path:
        """Writes a checkpoint and removes those no longer wanted.

        Args:
            step: how many steps were trained.
            tensors: numbers by name: arrays, tensors, or jax.Arrays in shards over devices.
            info: anything JSON can say; the first process's counts.

        Raises:
            OSError: some process could not write it; nothing that was there is lost.
            TypeError: a tensor is in parts and of a dtype that cannot be stored so.
        """
        final = self._path(step)
        partial = final.with_name(final.name + ".partial")
        first = self.process.index == 0
        stages = (
            (first, lambda: self._prepare(partial)),
            (True, lambda: self._write(partial, tensors)),
            (first, lambda: self._publish(partial, final, set(tensors), info)),
        )
        for mine, stage in stages:
            error = _error_of(stage) if mine else None
            if not self.process.minimum(int(error is None)):
                if first:
                    shutil.rmtree(partial, ignore_errors=True)
                raise _write_error(final, error) from error
        if first:
            self._remove_old()
        return final

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending."""
        names = (p.name for p in self.directory.glob("step_*") if (p / _INFO).exists())
        return sorted(int(n.removeprefix("step_")) for n in names if not n.endswith(".partial"))

    def mark_best(self, step: int) -> None:
        """Remembers that this checkpoint is the best so far; the first process does."""
        if self.process.index:
            return
        partial = self.directory / "best.json.partial"
        partial.write_text(json.dumps({"step": step}))
        os.replace(partial, self.directory / "best.json")
        self._remove_old()

    def best(self) -> int | None:
        """The step of the best checkpoint, the newest where none was marked, or None."""
        steps = self.steps()
        marked = self._marked()
        return marked if marked in steps else (steps[-1] if steps else None)

    def read(self, step: int) -> Checkpoint:
        """Opens one checkpoint; its tensors are read when they are asked for.

        Raises:
            OSError: it is missing, truncated or otherwise unreadable. A piece whose bytes changed
                is found by its checksum and raises OSError when it is read.
        """
        path = self._path(step)
        try:
            tensors = open_bundle(path / _PREFIX)
            info = json.loads((path / _INFO).read_text())
        except (OSError, LookupError, RuntimeError, ValueError, tf.errors.OpError) as error:
            raise OSError(
                f"Checkpoint {path} is missing or damaged ({error}). Others here: {self.steps()}."
            ) from error
        return Checkpoint(step, tensors, info)

    def read_latest(
        self, use: Callable[[Checkpoint], None] = lambda checkpoint: None
    ) -> Checkpoint | None:
        """The newest checkpoint that every process can read, with a warning for each that cannot.

        Args:
            use: takes what it needs from the checkpoint's tensors. If a piece turns out damaged
                there (OSError), `use` is called again with the checkpoint before.

        Raises:
            OSError: there are checkpoints and none can be read.
        """
        steps = remaining = self.steps()
        while (step := self.process.minimum(remaining[-1] if remaining else -1)) >= 0:
            checkpoint, error = None, None
            try:
                checkpoint = self.read(step)
                use(checkpoint)
            except OSError as exception:
                error = exception
            if self.process.minimum(int(error is None)):
                return checkpoint
            reason = error or f"Another process cannot read the checkpoint of step {step}."
            logging.warning("%s Falling back to the one before.", reason)
            remaining = [s for s in remaining if s < step]
        if steps:
            raise OSError(f"None of the checkpoints {steps} in {self.directory} can be read.")
        return None

    def _prepare(self, partial):
        """Clears away what crashed saves left, whatever step and however many processes."""
        for stale in self.directory.glob("step_*.partial"):
            shutil.rmtree(stale)
        partial.mkdir(parents=True)

    def _write(self, partial, tensors):
        if not partial.is_dir():
            raise FileNotFoundError(
                f"{partial}, made by the first process, is not there for process "
                f"{self.process.index}; the directory must be one that all processes share"
            )
        index = self.process.index
        write_pieces(partial / f"process-{index:05d}", local_pieces(tensors, index))

    def _publish(self, partial, final, names, info):
        pieces = sorted(path.with_suffix("") for path in partial.glob("process-*.index"))
        merge_bundles(pieces, partial / _PREFIX)
        if missing := names - set(open_bundle(partial / _PREFIX)):
            raise ValueError(f"No process holds {sorted(missing)}; nothing was written.")
        (partial / _INFO).write_text(json.dumps(info, indent=1))
        replaced = final.with_name(final.name + ".replaced.partial")
        if final.exists():
            os.rename(final, replaced)
        os.rename(partial, final)
        shutil.rmtree(replaced, ignore_errors=True)

    def _path(self, step):
        return self.directory / f"step_{step:08d}"

    def _marked(self):
        path = self.directory / "best.json"
        return json.loads(path.read_text())["step"] if path.exists() else None

    def _remove_old(self):
        for step in self.steps()[: -self.keep]:
            if step != self._marked():
                shutil.rmtree(self._path(step))


def _error_of(stage: Callable[[], None]) -> Exception | None:
    """What a stage raised. Any error must wait until the other processes have heard of it."""
    try:
        stage()
    except Exception as error:
        return error
    return None


def _write_error(final: Path, error: Exception | None) -> Exception:
    """What to raise for a stage that failed here, or (None) in another process."""
    if error is not None and not isinstance(error, (OSError, tf.errors.OpError)):
        return error
    return OSError(
        f"Could not write checkpoint {final}: {error or 'another process failed, see its log'}. "
        f"Earlier checkpoints are untouched; make room and run the same command again."
    )
