"""The base class of export formats: check a model, write it.

`--format` of lingvo-moe-export finds a subclass by its name, wherever it is defined.
"""

import abc
import dataclasses
import shlex
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lingvo_moe.config.fields import Params
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.serving.directory import new_export
from lingvo_moe.serving.formats.storage import FLOAT32, Storage
from lingvo_moe.serving.prune import Pruning
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.training.checkpoint import Checkpoint


@dataclasses.dataclass(frozen=True)
class Format(Params, abc.ABC):
    """A format of exports; its fields are its options.

    Attributes:
        storage: how weights are stored in the file.
        client: a file of lingvo_moe/serving that runs an export and does not need lingvo_moe. It is
            copied to the export. None for no such file.
        client_name: the name of the copy.
    """

    storage: Storage = FLOAT32

    client: ClassVar[str | None] = None
    client_name: ClassVar[str] = "translate.py"

    def export(
        self,
        model_dir: ModelDir,
        output: Path,
        step: int | None = None,
        overwrite: bool = False,
        pruning: Pruning | None = None,
    ) -> int:
        """Writes a checkpoint in this format.

        Args:
            model_dir: the trained model.
            output: the directory to make; it appears when it is complete.
            step: of the checkpoint; None for the best.
            overwrite: whether to replace an earlier export.
            pruning: which experts to remove; None for none.

        Returns the step of the exported checkpoint. Raises ValueError: there is no such checkpoint,
        the format cannot hold this model, or output is not empty and may not be replaced; OSError:
        the checkpoint is damaged, or output cannot be written.
        """
        self.check(model_dir, output, pruning)
        with new_export(output, self.client, self.client_name, overwrite) as directory:
            model_dir, theta, step = read_model(model_dir, step, pruning)
            self.write(model_dir, theta, step, directory)
        return step

    def export_untrained(
        self, name: str, params: TranslationParams, output: Path, overwrite: bool = False
    ) -> None:
        """Writes a model that has no weights, for formats that can hold one.

        Args:
            name: of the model.
            params: its params.
            output, overwrite: as for `export`.

        Raises ValueError: the format cannot hold such a model, or as for `export`; OSError: output
        cannot be written.
        """
        del params, output, overwrite
        raise ValueError(
            f"{type(self).__name__} exports hold trained weights, and {name} has none; give the "
            f"logdir of a trained model."
        )

    @abc.abstractmethod
    def check(self, model_dir: ModelDir, output: Path, pruning: Pruning | None) -> None:
        """Checks the model before its weights are read and anything is written. Raises ValueError:
        the format cannot hold this model."""

    @abc.abstractmethod
    def write(self, model_dir: ModelDir, theta: NestedMap, step: int, directory: Path) -> None:
        """Writes the files.

        Args:
            model_dir: the model, after pruning.
            theta: its weights, as arrays.
            step: the step of the checkpoint.
            directory: an empty directory.
        """

    def hint(self, output: Path, model_dir: ModelDir) -> str:
        """A command to try an export."""
        if self.client is None:
            return f"ls {shlex.quote(str(output))}"
        source, target = model_dir.some_languages
        needed = f" --source_language={source}" if model_dir.task.needs_source_language else ""
        client = shlex.quote(str(output / self.client_name))
        return f"python {client}{needed} --to={target} 'a sentence'"


def directory_size(path: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def read_model(
    model_dir: ModelDir, step: int | None = None, pruning: Pruning | None = None
) -> tuple[ModelDir, NestedMap, int]:
    """The model to export (after pruning), its weights as arrays, and their step.

    Args:
        model_dir: the trained model.
        step: of the checkpoint; None for the best.
        pruning: which experts to remove; None for none.

    Raises ValueError: there is no such checkpoint, or the model cannot be pruned; OSError: the
    checkpoint is damaged.
    """
    if pruning:
        pruning.check(model_dir)
    theta, step = read_theta(model_dir, step)
    model_dir = model_dir.at_step(step)
    return *(pruning.apply(model_dir, theta) if pruning else (model_dir, theta)), step


def read_theta(model_dir: ModelDir, step: int | None = None) -> tuple[NestedMap, int]:
    """The weights of a checkpoint, as arrays, and its step.

    Args:
        model_dir: the trained model.
        step: of the checkpoint; None for the best.

    Raises ValueError: there is no such checkpoint; OSError: the checkpoint is damaged.
    """
    prefix = "theta/"
    weights: dict[str, Any] = {}

    def read(checkpoint: Checkpoint) -> None:
        weights.clear()
        for name, tensor in checkpoint.tensors.items():
            if name.startswith(prefix):
                weights[name.removeprefix(prefix)] = np.asarray(tensor)

    checkpoint = model_dir.read_checkpoint(step, read)
    return NestedMap.unflatten(weights), checkpoint.step
