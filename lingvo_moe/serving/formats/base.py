"""The base class of export formats: check a model, write it.

`--format` of lingvo-moe-export finds a subclass by its name, wherever it is defined.
"""

import abc
import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lingvo_moe.config.fields import Params
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.serving.formats.storage import FLOAT32, Storage
from lingvo_moe.serving.prune import Pruning
from lingvo_moe.system.files import new_directory
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.training.checkpoint import Checkpoint

MAKER, CLIENT = "lingvo-moe-export", "translate.py"
_PACKAGE = Path(__file__).parents[2]
_IMPORT = re.compile(r"^from lingvo_moe\.(\w+)\.(\w+) import", re.MULTILINE)
# With this the client finds the modules in its directory under `python -I` too, and adds no file to
# the directory: --overwrite does not replace a directory with additional files.
_BESIDE = """import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

"""


@dataclasses.dataclass(frozen=True)
class Format(Params, abc.ABC):
    """A format of exports; its fields are its options.

    Attributes:
        storage: how weights are stored in the file.
        has_client: whether an export gets `translate.py`, a copy of serving/client.py, which
            translates with it without lingvo_moe.
        can_be_read: whether `lingvo_moe.load` reads an export.
    """

    storage: Storage = FLOAT32

    has_client: ClassVar[bool] = False
    can_be_read: ClassVar[bool] = False

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
        self.check(model_dir)
        with new_directory(output, MAKER, overwrite) as directory:
            model_dir, theta, step = read_model(model_dir, step, pruning)
            self.write(model_dir, theta, step, directory)
            if self.has_client:
                _copy_client(directory)
        return step

    def check(self, model_dir: ModelDir) -> None:
        """Checks the model before its weights are read and anything is written. Raises ValueError:
        the format cannot hold this model. By default any model fits."""

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
        if not (program := self.program(output)):
            return f"ls {shlex.quote(str(output))}"
        source, target = model_dir.some_languages
        needed = f" --source_language={source}" if model_dir.task.needs_source_language else ""
        return f"{program}{needed} --to={target} 'a sentence'"

    def program(self, output: Path) -> str | None:
        """The start of a command that translates with an export; None if there is none."""
        return f"python {shlex.quote(str(output / CLIENT))}" if self.has_client else None


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


def _copy_client(directory):
    """Writes the client, and the modules of this package that it imports by `from … import`."""
    source = (_PACKAGE / "serving" / "client.py").read_text(encoding="utf-8")
    start = source.index("from lingvo_moe.")
    source = source[:start] + _BESIDE + source[start:]
    (directory / CLIENT).write_text(_copied(source, directory), encoding="utf-8")


def _copied(source, directory):
    """A program that imports its modules from its directory, to which they are copied."""
    for package, module in set(_IMPORT.findall(source)):
        path = directory / f"{module}.py"
        if not path.exists():
            text = (_PACKAGE / package / path.name).read_text(encoding="utf-8")
            path.write_text(_copied(text, directory), encoding="utf-8")
    return _IMPORT.sub(r"from \2 import", source)
