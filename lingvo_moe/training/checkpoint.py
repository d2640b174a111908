"""Checkpoints: TensorFlow's bundle format in a directory that appears when it is complete."""

import dataclasses
import hashlib
import itertools
import json
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_moe.system.files import read_json, sync, sync_tree, write_whole
from lingvo_moe.training.bundle import (
    StoredTensor,
    TensorSlice,
    local_pieces,
    merge_bundles,
    open_bundle,
    write_pieces,
)
from lingvo_moe.training.process import ALONE, Process

_PREFIX = "state"
_INFO = "info.json"
# Results of resuming from a checkpoint: an error, damage, or success.
_FAILED, _DAMAGED, _USED = range(3)
_SCRATCH = re.compile(r"step_\d{8,}(\.removed)?\.partial")


class Best(NamedTuple):
    """The best evaluation so far."""

    step: int | None = None  # its step; None before the first evaluation
    # what train.best_by minimizes, such as its dev loss in nats per token; infinite before the
    # first evaluation
    loss: float = math.inf
    evaluations_since: int = 0  # number of evaluations after it
    is_due: bool = False  # whether the evaluation of the checkpoint that names it failed


NO_BEST = Best()


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint."""

    path: Path  # its directory
    step: int  # number of steps trained
    tensors: Mapping[str, StoredTensor]  # by name; read on demand

    @property
    def best(self) -> Best:
        """The best evaluation at the time of saving. Raises OSError: its info.json is missing or
        damaged."""
        return _read_best(self.path)


@dataclasses.dataclass(frozen=True)
class Checkpointer:
    """Saves and restores under `directory/step_00001000/`.

    A checkpoint has one TensorFlow bundle, readable with tf.train.load_checkpoint, and info.json,
    which names the best checkpoint so far. It is written under another name, synced and renamed, so
    a crash or a full disk does not damage earlier checkpoints. Every process writes the pieces it
    holds; readers do not depend on how tensors were split.
    """

    directory: Path  # of the checkpoints, on a file system that all processes share
    # which checkpoints to keep, besides the best ones and the one just saved: the newest ones, and
    # those of multiples of a number of steps
    keep: int = 3
    keep_every: int | None = None
    process: Process = ALONE  # this process. All processes call `save` and `resume` together.

    def save(self, step: int, tensors: Mapping[str, Any], best: Best = NO_BEST) -> Path:
        """Writes a checkpoint and removes old ones.

        Args:
            step: number of trained steps; it must not have a checkpoint yet.
            tensors: by name: arrays, tensors, or jax.Arrays in shards over devices.
            best: the best evaluation so far; that of the first process is used.

        Raises FloatingPointError: a tensor has NaN or infinity; nothing is saved; OSError: a
        process could not write it; earlier checkpoints are unchanged.
        """
        final = self._path(step)
        partial = final.with_name(final.name + ".partial")
        first = self.process.index == 0
        stages = (
            (first, lambda: self._prepare(partial, final)),
            (True, lambda: self._write(partial, tensors)),
            (first, lambda: self._publish(partial, final, set(tensors), best)),
        )
        try:
            for mine, stage in stages:
                self._together(mine, stage, f"Could not write checkpoint {final}")
        except Exception:
            if first:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        if first:
            self._remove_old(step)
        return final

    def record(self, step: int, best: Best) -> None:
        """Writes the best evaluation so far into the checkpoint of a step. Raises OSError: it
        cannot be written."""
        if self.process.index == 0:
            write_whole(self._path(step) / _INFO, _info(best))

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending."""
        return sorted(step for step, path in self._entries() if (path / _INFO).is_file())

    def best(self) -> int | None:
        """The step of the best checkpoint, the newest if none was evaluated, or None.

        It is named by the newest checkpoint with a readable info.json.
        """
        steps = self.steps()
        for step in reversed(steps):
            if (best := self._best_of(step)) is not None:
                if (found := step if best.step is None else best.step) in steps:
                    return found
                logging.warning("The best checkpoint %s is missing.", self._path(found))
                return step
        return steps[-1] if steps else None

    def read(
        self, step: int | None = None, use: Callable[[Checkpoint], None] = lambda checkpoint: None
    ) -> Checkpoint:
        """Opens one checkpoint; its tensors are read on demand.

        Args:
            step: its step; None for the best.
            use: reads the tensors it needs. If a running training finds a better checkpoint and
                removes this one meanwhile, `use` is called again with the better one.

        Raises OSError: it is missing, truncated or otherwise unreadable. A damaged piece raises
        OSError when it is read, by its checksum.
        """
        while True:
            wanted = self.best() if step is None else step
            if wanted is None:
                raise FileNotFoundError(f"There is no checkpoint in {self.directory}.")
            try:
                checkpoint = self._open(wanted)
                use(checkpoint)
                return checkpoint
            except OSError:
                if step is not None or self.best() in (wanted, None):
                    raise

    def index(self, step: int) -> Path:
        """The file of a checkpoint that has a checksum of each tensor."""
        return self._path(step) / f"{_PREFIX}.index"

    def resume(
        self, use: Callable[[Checkpoint], None] = lambda checkpoint: None
    ) -> Checkpoint | None:
        """The newest checkpoint that every process can read; unreadable ones give a warning.

        Checkpoints of later steps would count as newer than those to come. They are renamed, to
        step_00001000.aside-1, and never deleted.

        Args:
            use: reads the tensors it needs. If a piece is damaged (OSError), `use` is called again
                with the checkpoint before.

        Raises OSError: none of the checkpoints can be read, or the directory cannot be written.
        """
        checkpoint = self._newest(use)
        self._together(
            self.process.index == 0,
            lambda: self._make_way(-1 if checkpoint is None else checkpoint.step),
            f"Could not make {self.directory} ready for new checkpoints",
        )
        return checkpoint

    def _newest(self, use):
        steps = remaining = self.steps()
        while (step := self.process.minimum(remaining[-1] if remaining else -1)) >= 0:
            checkpoint, error = None, None
            try:
                checkpoint = self._open(step)
                _ = checkpoint.best  # damage there counts too
                use(checkpoint)
            except Exception as exception:  # raised after the other processes know of it
                error = exception
            verdict = _DAMAGED if isinstance(error, OSError) else _FAILED
            agreed = self.process.minimum(_USED if error is None else verdict)
            if agreed == _USED:
                return checkpoint
            reason = error or OSError(f"Another process cannot read checkpoint {self._path(step)}.")
            if agreed == _FAILED:
                raise reason
            logging.warning("%s Falling back to the one before.", reason)
            remaining = [s for s in remaining if s < step]
        if self.process.minimum(int(not steps)) == 0:
            raise OSError(f"None of the checkpoints {steps} in {self.directory} can be read.")
        return None

    def _together(self, mine: bool, stage: Callable[[], None], failed: str) -> None:
        """Runs a stage if `mine` is true. If one process fails, all of them raise."""
        error = None
        if mine:
            try:
                stage()
            except Exception as exception:  # raised after the other processes know of it
                error = exception
        if self.process.minimum(int(error is None)):
            return
        cause = self.process.cause(error)
        if error is not None and not isinstance(error, (OSError, tf.errors.OpError)):
            raise error
        raise OSError(
            f"{failed}: {cause}. Earlier checkpoints are untouched. Remove the cause and run the "
            f"same command again."
        ) from error

    def _open(self, step):
        path = self._path(step)
        try:
            return Checkpoint(path, step, open_bundle(path / _PREFIX))
        except (OSError, LookupError, RuntimeError, ValueError, tf.errors.OpError) as error:
            raise OSError(
                f"Checkpoint {path} is missing or damaged ({error}). Others here: {self.steps()}."
            ) from error

    def _make_way(self, step):
        """Makes the directory; renames checkpoints of later steps."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if not os.access(self.directory, os.W_OK | os.X_OK):
            raise PermissionError(f"{self.directory} is not writable")
        for later, path in self._entries():
            if later > step:
                names = (path.with_name(f"{path.name}.aside-{n}") for n in itertools.count(1))
                aside = next(name for name in names if not name.exists())
                os.rename(path, aside)
                logging.warning(
                    "%s cannot be used and was renamed to %s; you may delete it.", path, aside.name
                )

    def _prepare(self, partial, final):
        """Removes the files of crashed saves, of any step and any process."""
        if final.exists():
            raise FileExistsError(f"{final} exists already, and checkpoints are never overwritten")
        for path in self.directory.glob("step_*.partial"):
            if _SCRATCH.fullmatch(path.name):
                _discard(path)
        partial.mkdir(parents=True)

    def _write(self, partial, tensors):
        if not partial.is_dir():
            raise FileNotFoundError(
                f"{partial}, made by the first process, does not exist for process "
                f"{self.process.index}; the directory must be one that all processes share"
            )
        index = self.process.index
        write_pieces(partial / f"process-{index:05d}", _finite(local_pieces(tensors, index)))

    def _publish(self, partial, final, names, best):
        pieces = sorted(path.with_suffix("") for path in partial.glob("process-*.index"))
        merge_bundles(pieces, partial / _PREFIX)
        if missing := names - set(open_bundle(partial / _PREFIX)):
            raise ValueError(f"No process holds {sorted(missing)}; nothing was written.")
        (partial / _INFO).write_text(_info(best))
        sync_tree(partial)
        os.rename(partial, final)
        sync(self.directory)

    def _remove_old(self, saved):
        """Removes checkpoints that are not kept."""
        steps = self.steps()
        every = {step for step in steps if self.keep_every and step % self.keep_every == 0}
        kept = {saved, *every, *steps[-self.keep :]}
        best = {of.step for step in kept if (of := self._best_of(step))}
        for step in {*steps} - kept - best:
            _discard(self._path(step))

    def _best_of(self, step) -> Best | None:
        """The best by a checkpoint; None if its info.json cannot be read."""
        try:
            return _read_best(self._path(step))
        except OSError as error:
            logging.warning("%s The checkpoint is left out.", error)
            return None

    def _path(self, step):
        return self.directory / f"step_{step:08d}"

    def _entries(self) -> list[tuple[int, Path]]:
        """The paths with the name of a checkpoint, with their steps."""
        named = []
        for path in self.directory.glob("step_*"):
            digits = path.name.removeprefix("step_")
            if digits.isdecimal() and path == self._path(int(digits)):
                named.append((int(digits), path))
        return named


def check_tensors(tensors: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Checks that the tensors of a checkpoint are those of a model.

    Args:
        tensors: by name, each with a shape.
        shapes: of the model's tensors, by name.

    Raises ValueError: a tensor is missing or of another shape, or there is a weight ("theta/…")
    that the model does not have.
    """
    for name, shape in shapes.items():
        if name not in tensors:
            raise ValueError(
                f"The checkpoint has no tensor {name!r}: it is of another model or optimizer, or "
                f"this weight was frozen. Start a new logdir from it with --init_from."
            )
        if tuple(tensors[name].shape) != shape:
            raise ValueError(
                f"Tensor {name!r} is {tuple(tensors[name].shape)} in the checkpoint and {shape} in "
                f"the model; give the model the checkpoint was trained with, --set included."
            )
    more = sorted(name for name in tensors if name.startswith("theta/") and name not in shapes)
    if more:
        raise ValueError(
            f"The checkpoint has {len(more)} weights that the model lacks, such as {more[0]!r}; "
            f"give the model the checkpoint was trained with, --set included."
        )


def _read_best(path: Path) -> Best:
    """The best by a checkpoint's info.json; OSError if it is missing or damaged."""
    file = path / _INFO
    try:
        info = read_json(file)
        if info.pop("sha256") != _digest(info):
            raise ValueError("its SHA-256 does not match its contents")
        best = Best(**info["best"])
        return best if best.loss is not None else best._replace(loss=math.inf)
    except (ValueError, LookupError, TypeError) as error:
        raise OSError(f"{file} is missing or damaged ({error!r}).") from error


def _info(best: Best) -> str:
    """The text of info.json."""
    fields = best._asdict() | {"loss": best.loss if math.isfinite(best.loss) else None}
    info = {"best": fields, "saved": time.time()}
    return json.dumps(info | {"sha256": _digest(info)}, indent=1)


def _digest(info: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(info, sort_keys=True).encode()).hexdigest()


def _discard(path: Path) -> None:
    """Deletes a checkpoint, also an incomplete one, after hiding it from readers."""
    hidden = path if path.suffix == ".partial" else path.with_name(path.name + ".removed.partial")
    try:
        os.rename(path, hidden)
        shutil.rmtree(hidden)
    except OSError as error:
        logging.warning("%s could not be deleted (%s); the next save tries again.", path, error)


def _finite(pieces: Iterator[TensorSlice]) -> Iterator[TensorSlice]:
    """The pieces; FloatingPointError at the first with NaN or infinity."""
    for piece in pieces:
        if not piece.is_finite:
            raise FloatingPointError(
                f"{piece.name!r} has NaN or infinity. Nothing was saved; earlier "
                f"checkpoints are untouched. Try a lower learning rate, train.clip_norm, or "
                f"activation_dtype='float32'."
            )
        yield piece
