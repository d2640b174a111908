"""Loads logdirs and exports as models of the server."""

from collections.abc import Sequence
from pathlib import Path

from lingvo_moe.jobs.model import Model
from lingvo_moe.runtimes.local import Local
from lingvo_moe.server.model import Served
from lingvo_moe.server.params import ServerParams
from lingvo_moe.serving.exported import Exported, is_saved_model
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.translation import RuntimeFn


def load(
    path: Path,
    limits: ServerParams,
    overrides: Sequence[str] = (),
    make_runtime: RuntimeFn = Local,
) -> Served:
    """Loads the model in a directory and warms it up.

    Args:
        path: a logdir, or an export.
        limits: of requests.
        overrides: `--set` texts for a logdir; an export ignores them.
        make_runtime: makes the runtime of a logdir's model.

    Raises ValueError, OSError: path is neither a logdir nor an export, or is damaged.
    """
    if is_saved_model(path):
        loaded: Model | Exported = Exported(path)
    else:
        loaded = Model(ModelDir.open(path).with_overrides(overrides), make_runtime)
    model = Served(loaded, limits)
    source, target = model.direction
    model.translate(["a"], target, source_language=source)  # the first call compiles
    return model


def load_all(
    texts: Sequence[str],
    limits: ServerParams,
    overrides: Sequence[str] = (),
    make_runtime: RuntimeFn = Local,
) -> dict[str, Served]:
    """The models of `--model` texts, NAME=DIR or DIR, by name; see `load`. Raises ValueError,
    OSError: two have the same name, or one cannot be loaded."""
    named = [split_name(text) for text in texts]
    names = [name for name, _ in named]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"Several models have the name {', '.join(repeated)}; give names: --model=NAME=DIR."
        )
    return {name: load(path, limits, overrides, make_runtime) for name, path in named}


def split_name(text: str) -> tuple[str, Path]:
    """The name and the directory of "NAME=DIR"; without NAME= that of the directory. Raises
    ValueError: there is no name."""
    name, equals, directory = text.partition("=")
    if not equals or Path(text).exists():
        name, directory = Path(text).resolve().name, text
    if not name or not directory:
        raise ValueError(f"--model={text}: write it as NAME=DIR.")
    return name, Path(directory)
