"""Checkpoints: TensorFlow's bundle format in a directory that appears whole or not at all."""

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

_PREFIX = "state"
_INFO = "info.json"


class Checkpoint(NamedTuple):
    """step; tensors by name (numpy); info, whatever the writer said (JSON)."""

    step: int
    tensors: dict[str, np.ndarray]
    info: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Checkpointer:
    """Saves and restores under `directory/step_00001000/`.

    Each holds one TensorFlow bundle, readable with tf.train.load_checkpoint, and info.json. It is
    written beside its place and renamed, so a crash or a full disk leaves the earlier ones whole.

    Attributes:
        directory: where the checkpoints lie.
        keep: how many of the newest stay; the best one always stays too.
    """

    directory: Path
    keep: int = 3

    def save(self, step: int, tensors: Mapping[str, Any], info: Mapping[str, Any]) -> Path:
        """Writes a checkpoint and removes those no longer wanted.

        Raises:
            OSError: it could not be written; nothing that was there is lost.
        """
        final = self._path(step)
        partial = final.with_name(final.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            names = list(tensors)
            tf.raw_ops.SaveV2(
                prefix=str(partial / _PREFIX),
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                tensors=[tf.convert_to_tensor(tensors[name]) for name in names],
            )
            (partial / _INFO).write_text(json.dumps(info, indent=1))
            shutil.rmtree(final, ignore_errors=True)
            os.rename(partial, final)
        except (OSError, tf.errors.OpError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise OSError(
                f"Could not write checkpoint {final}: {error}. Earlier checkpoints are untouched; "
                f"make room and run the same command again."
            ) from error
        self._remove_old()
        return final

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending."""
        names = (p.name for p in self.directory.glob("step_*") if (p / _INFO).exists())
        return sorted(int(n.removeprefix("step_")) for n in names if not n.endswith(".partial"))

    def mark_best(self, step: int) -> None:
        """Remembers that this checkpoint is the best so far."""
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
        """Reads one checkpoint.

        Raises:
            OSError: it is missing, truncated or otherwise unreadable.
        """
        path = self._path(step)
        try:
            reader = tf.train.load_checkpoint(str(path / _PREFIX))
            tensors = {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()}
            info = json.loads((path / _INFO).read_text())
        except (OSError, LookupError, RuntimeError, ValueError, tf.errors.OpError) as error:
            raise OSError(
                f"Checkpoint {path} is missing or damaged ({error}). Others here: {self.steps()}."
            ) from error
        return Checkpoint(step, tensors, info)

    def read_latest(self) -> Checkpoint | None:
        """The newest checkpoint that can be read, with a warning for each that cannot.

        Raises:
            OSError: there are checkpoints and none can be read.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                return self.read(step)
            except OSError as error:
                logging.warning("%s Falling back to the one before.", error)
        if steps:
            raise OSError(f"None of the checkpoints {steps} in {self.directory} can be read.")
        return None

    def _path(self, step):
        return self.directory / f"step_{step:08d}"

    def _marked(self):
        path = self.directory / "best.json"
        return json.loads(path.read_text())["step"] if path.exists() else None

    def _remove_old(self):
        for step in self.steps()[: -self.keep]:
            if step != self._marked():
                shutil.rmtree(self._path(step))
