"""Reads the fields and the params in model.json, the file that makes a directory a logdir."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lingvo_moe.config import plugins
from lingvo_moe.config.fields import check_fields
from lingvo_moe.config.params import foreign_modules, from_fields
from lingvo_moe.system.files import read_json
from lingvo_moe.tasks.params import TranslationParams

FORMAT = 2
FILE = "model.json"
_HINTS = {
    "model": str,
    "pairs": list[str],
    "tags": dict[str, int],
    "vocabularies": dict[str, str],
    "dataset": str,
    "seen_pairs": list[str],
    "plugins": dict[str, str],
    "params": dict[str, str],
}


def read_fields(path: Path, model: str | None = None) -> dict[str, Any]:
    """The fields of a logdir's model.json, after checks of their types. Raises ValueError: path is
    not a logdir, it is damaged, or it is of another model than the one named."""
    file = path / FILE
    if not file.exists():
        why = f"it has no {FILE}" if path.exists() else "it does not exist"
        raise ValueError(f"{path} is no logdir: {why}. Give the directory of a trained model.")
    fields = {"format": None, "seen_pairs": [], "plugins": {}} | read_json(file)
    if (version := fields["format"]) != FORMAT:
        raise ValueError(
            f"{file} is of format {version!r}; this version of lingvo_moe reads {FORMAT}. Use the "
            f"version that wrote it."
        )
    check_fields(fields, _HINTS, str(file))
    if model is not None and fields["model"] != model:
        raise ValueError(
            f"Logdir {path} is of model {fields['model']!r}, not {model!r}; give another "
            f"--logdir or --model={fields['model']}."
        )
    return fields


def read_params(path: Path, fields: dict[str, Any]) -> TranslationParams:
    """The params in the `read_fields` of a logdir, whose plugins are imported first. Raises
    ValueError: a module cannot be imported, or the params cannot be read."""
    _import_plugins(path / FILE, fields["plugins"])
    return from_fields(TranslationParams, fields["params"], str(path / FILE))


def plugins_of(params: TranslationParams) -> dict[str, str]:
    """The modules and files that must be imported before these params can be read again.

    Each with the SHA-256 of its source. A class that a notebook defines cannot be imported, so
    another process that opens the logdir gets an error that names the class.
    """
    loaded = {sys.modules[name] for name in foreign_modules(params) if name in sys.modules}
    names = {plugins.import_name(module.__name__) for module in loaded - plugins.modules()}
    every = (*plugins.imported(), *sorted(names - {"__main__"}))
    return {name: plugins.digest(name) for name in every}


def _import_plugins(file: Path, names: Mapping[str, str]) -> None:
    """Imports them. A changed source is a warning: it may well be a correction in mid-training."""
    try:
        plugins.import_plugins(name for name in names if not plugins.is_moved(name))
    except ValueError as error:
        raise ValueError(
            f"{file} names a module that the model needs and that cannot be imported. {error} If "
            f"the module's file was moved, pass --import with its new path."
        ) from error
    for name, digest in names.items():
        if plugins.digest(name) != digest:
            logging.warning(
                "%s: the plug-in %s has changed since the model was trained with it, so its "
                "results may differ. Restore its source, or go on with the new one.",
                file,
                name,
            )
