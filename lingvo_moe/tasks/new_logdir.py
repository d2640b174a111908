"""Checks that training may make a logdir at a path."""

from collections.abc import Mapping
from pathlib import Path

from lingvo_moe.data.dataset import FILE as DATASET_FILE
from lingvo_moe.data.vocabulary import Vocabulary
from lingvo_moe.system.lines import first_of
from lingvo_moe.tasks.model_json import FILE

# What a shell or a cluster writes into a directory before training.
_LOGS = (".log", ".out", ".err")


def check_new_logdir(path: Path, vocabularies: Mapping[str, Vocabulary] | None = None) -> None:
    """Checks that a path is a logdir, or has no files that do not belong to one.

    Allowed is what an interrupted first start leaves: an empty `checkpoints`, vocabularies, and the
    dataset that `lm.train` makes from examples, perhaps unfinished. Hidden files, lost+found, and
    logs such as train.log are allowed too.

    Args:
        path: of the logdir.
        vocabularies: "source" and "target" -> that of the model; vocabularies with other contents
            are refused. None if the data are not read yet: then contents are not compared.

    Raises ValueError: other files are there; NotADirectoryError: path is a file.
    """
    if (path / FILE).exists() or not path.exists():
        return
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is a file; give another --logdir.")
    others = [one.name for one in sorted(path.iterdir()) if not _may_be_there(one, vocabularies)]
    if others:
        raise ValueError(
            f"{path} is no logdir: it has no {FILE}, and it is not empty ({first_of(others)}). "
            f"Give the name of a new directory as --logdir."
        )


def _may_be_there(file: Path, vocabularies: Mapping[str, Vocabulary] | None) -> bool:
    """Whether this is allowed in a new logdir."""
    if file.name.startswith(".") or file.name in ("data.parts", "lost+found"):
        return True
    if file.suffix in _LOGS:
        return file.is_file()
    if file.name == "checkpoints":
        return file.is_dir() and not any(file.iterdir())
    if file.name == "data":
        return (file / DATASET_FILE).exists()
    side, _, suffix = file.name.partition(".")
    if suffix != "model" or side not in ("source", "target"):
        return False
    return vocabularies is None or (
        file.is_file() and file.read_bytes() == vocabularies[side].model_bytes
    )
