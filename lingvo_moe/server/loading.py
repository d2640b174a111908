"""Loads logdirs and exports as models of the server."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lingvo_moe.decoding.params import MAX_BEAM, BeamSearchParams
from lingvo_moe.runtimes.local import Local
from lingvo_moe.server.model import Model
from lingvo_moe.serving.exported import Exported
from lingvo_moe.tasks.model import Model as TrainedModel
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.translation import RuntimeFn
from lingvo_moe.tasks.translator import Translator

_NO_LIMIT = (1 << 31) - 1


class Trained(TrainedModel):
    """The model of a logdir, with limits for requests."""

    options: Sequence[str] = [
        field.name for field in dataclasses.fields(BeamSearchParams) if field.name != "batch_tokens"
    ]

    def __init__(
        self,
        path: Path,
        n_best: int,
        overrides: Sequence[str] = (),
        beam_size: int = MAX_BEAM,
        make_runtime: RuntimeFn = Local,
    ):
        """Loads the best checkpoint.

        Args:
            path: the logdir.
            n_best: largest number of translations of a sentence.
            overrides: `--set` texts.
            beam_size: largest beam size of a request.
            make_runtime: makes its runtime.

        Raises:
            ValueError, OSError: path is not a logdir, or has no checkpoint.
        """
        super().__init__(ModelDir.open(path).with_overrides(overrides), make_runtime)
        self.n_best, self._beam_size = n_best, max(beam_size, self.params.decoding.beam_size)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Checks options; see Model."""
        _check_limits(self.translator(**options).decoding, self.n_best, self._beam_size)

    def translator(self, **decoding: Any) -> Translator:
        """See TrainedModel; all sentences are one batch."""
        return super().translator(**{"n_best": 1, **decoding, "batch_tokens": _NO_LIMIT})

    def measure(self, sentences: Sequence[str], **options: Any) -> list[tuple[int, int]]:
        """How many pieces of each sentence are read, and how many are left out."""
        read = self.translator(**options).read(sentences)
        return [(sum(map(len, parts)), left_out) for parts, left_out in read]

    def sizes(self, sentence: str, translation: str) -> tuple[int, int]:
        """How many pieces each has, of the vocabulary of its side."""
        source, target = (self.logdir.vocabulary(side) for side in ("source", "target"))
        return len(source.encode([sentence])[0]), len(target.encode([translation])[0])


class Served(Exported):
    """An export, with limits for requests."""

    def __init__(self, path: Path, n_best: int, beam_size: int = MAX_BEAM):
        """Loads it; n_best and beam_size as for `Trained`.

        Raises:
            ValueError, OSError: path is no export, or is damaged.
        """
        super().__init__(path)
        self.n_best = min(n_best, self.n_best)
        self._beam_size = max(beam_size, self.search_with({}).beam_size)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Checks options; see Model."""
        _check_limits(self.search_with(options), self.n_best, self._beam_size)


def _check_limits(decoding, n_best, beam_size):
    for name, most in (("n_best", n_best), ("beam_size", beam_size)):
        if getattr(decoding, name) > most:
            raise ValueError(f"{name} must be 1 to {most}, got {getattr(decoding, name)}.")


def load(
    path: Path,
    n_best: int,
    overrides: Sequence[str] = (),
    beam_size: int = MAX_BEAM,
    make_runtime: RuntimeFn = Local,
) -> Model:
    """Loads the model in a directory and warms it up.

    Args:
        path: a logdir, or an export.
        n_best, beam_size: largest values of a request.
        overrides, make_runtime: for a logdir, see `Trained`; an export ignores them.

    Raises:
        ValueError, OSError: path is neither a logdir nor an export, or is damaged.
    """
    if (path / "model.json").exists():
        model: Model = Trained(path, n_best, overrides, beam_size, make_runtime)
    elif (path / "saved_model.pb").exists():
        model = Served(path, n_best, beam_size)
    else:
        raise ValueError(
            f"{path} is no model: it has neither the model.json of a logdir nor the saved_model.pb "
            f"of lingvo-moe-export."
        )
    source, _, target = model.pairs[0].rpartition("-") if model.pairs else [model.languages[0]] * 3
    # The first call compiles.
    model.translate(["a"], target, source_language=source, n_best=1, warn=lambda line: None)
    return model


def load_all(
    texts: Sequence[str],
    n_best: int,
    overrides: Sequence[str] = (),
    beam_size: int = MAX_BEAM,
    make_runtime: RuntimeFn = Local,
) -> dict[str, Model]:
    """The models of `--model` texts, NAME=DIR or DIR, by name; see `load`.

    Raises:
        ValueError, OSError: two have the same name, or one cannot be loaded.
    """
    named = [split_name(text) for text in texts]
    names = [name for name, _ in named]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"Several models have the name {', '.join(repeated)}; give names: --model=NAME=DIR."
        )
    return {name: load(path, n_best, overrides, beam_size, make_runtime) for name, path in named}


def split_name(text: str) -> tuple[str, Path]:
    """The name and the directory of "NAME=DIR"; without NAME= that of the directory.

    Raises:
        ValueError: there is no name.
    """
    name, equals, directory = text.partition("=")
    if not equals or Path(text).exists():
        name, directory = Path(text).resolve().name, text
    if not name or not directory:
        raise ValueError(f"--model={text}: write it as NAME=DIR.")
    return name, Path(directory)
