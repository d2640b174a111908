"""Loads logdirs and exports as models of the server."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lingvo_moe.data.batching import padded
from lingvo_moe.data.vocabulary import EOS
from lingvo_moe.decoding.params import MAX_BEAM, BeamSearchParams
from lingvo_moe.runtimes.local import Local
from lingvo_moe.server.model import Explanation, Model, Token
from lingvo_moe.serving.exported import Exported
from lingvo_moe.tasks.evaluation import load_translator
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.scorer import Scorer
from lingvo_moe.tasks.translator import Translation

_NO_LIMIT = (1 << 31) - 1


class Trained:
    """The model of a logdir; it can also explain translations."""

    options: Sequence[str] = [
        field.name for field in dataclasses.fields(BeamSearchParams) if field.name != "batch_tokens"
    ]

    def __init__(
        self, path: Path, n_best: int, overrides: Sequence[str] = (), beam_size: int = MAX_BEAM
    ):
        """Loads the best checkpoint.

        Args:
            path: the logdir.
            n_best: largest number of translations of a sentence.
            overrides: `--set` texts.
            beam_size: largest beam size of a request.

        Raises:
            ValueError, OSError: it is no logdir, or has no checkpoint.
        """
        model_dir = ModelDir.open(path).with_overrides(overrides)
        self._model_dir, self._runtime = model_dir, Local(model_dir.task)
        translator, _ = load_translator(model_dir, self._runtime)
        decoding = dataclasses.replace(translator.decoding, batch_tokens=_NO_LIMIT)
        self._translator = dataclasses.replace(translator, decoding=decoding)
        self._scorer = Scorer(model_dir, self._runtime.score)
        self.languages: Sequence[str] = sorted(model_dir.tags)
        self.pairs: Sequence[str] = model_dir.params.input.pairs or model_dir.pairs
        self.needs_source_language = model_dir.task.needs_source_language
        self.n_best, self.max_pieces = n_best, translator.max_pieces
        self._beam_size = max(beam_size, model_dir.params.decoding.beam_size)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Checks options; see Model."""
        decoding = self._with_options(options).decoding
        for name, most in (("n_best", self.n_best), ("beam_size", self._beam_size)):
            if getattr(decoding, name) > most:
                raise ValueError(f"{name} must be 1 to {most}, got {getattr(decoding, name)}.")

    def _with_options(self, options):
        decoding = self._translator.decoding.with_options({"n_best": 1, **options})
        translator = dataclasses.replace(self._translator, decoding=decoding)
        assert translator.request  # or a ValueError
        return translator

    def measure(self, sentences: Sequence[str], **options: Any) -> list[tuple[int, int]]:
        """How many pieces of each sentence are read, and how many are left out."""
        read = self._with_options(options).read(sentences)
        return [(sum(map(len, parts)), left_out) for parts, left_out in read]

    def translate(
        self,
        sentences: Sequence[str],
        to: str,
        *,
        source_language: str | None,
        warn: Callable[[str], None],
        **options: Any,
    ) -> list[list[Translation]]:
        """Translates sentences, all in one batch; see Model."""
        return self._with_options(options)(sentences, to, source_language, warn=warn)

    def explain(
        self, sources: Sequence[str], targets: Sequence[str], to: str, source_language: str | None
    ) -> list[Explanation]:
        """The log-probability and the experts of each token of given translations.

        Args:
            sources: sentences of at most max_pieces.
            targets: their translations, as many.
            to: the language of the targets.
            source_language: of the sources; needed only by models that route by it.

        Raises:
            ValueError: as for `translate`.
        """
        scores = self._scorer(sources, targets, to, source_language)
        read, written = (self._model_dir.vocabulary(side) for side in ("source", "target"))
        prefix = self._model_dir.prefix(source_language, to)
        task = self._model_dir.task.task_id(source_language, to)
        ids = [[*prefix, *pieces, EOS] for pieces in read.encode(list(sources))]
        given = (*padded(ids), *padded([[*p, EOS] for p in written.encode(list(targets))]))
        routes = self._runtime.routes(*given, np.full(len(ids), task, np.int32))
        unread = int(self._model_dir.params.language_tags.on_target)  # tags for the decoder
        ids = [row[unread:] for row in ids]
        return [
            Explanation(
                _tokens(read.pieces(row), [None] * len(row), routes, "encoder", number),
                _tokens(score.tokens, score.token_log_probs, routes, "decoder", number),
            )
            for number, (row, score) in enumerate(zip(ids, scores, strict=True))
        ]


def _tokens(pieces, log_probs, routes, side, row):
    """The Tokens of one side of a row of `TranslationTask.routes`."""
    tables = {
        layer: [table.numpy()[row] for table in tables]
        for layer, tables in routes.items()
        if layer.startswith(side)
    }

    def experts(place):
        chosen = {layer: zip(e[place], w[place], strict=True) for layer, (e, w) in tables.items()}
        return {
            layer: [(int(expert), float(weight)) for expert, weight in choices if weight]
            for layer, choices in chosen.items()
        }

    return [
        Token(piece, log_prob, experts(place))
        for place, (piece, log_prob) in enumerate(zip(pieces, log_probs, strict=True))
    ]


def load(
    path: Path, n_best: int, overrides: Sequence[str] = (), beam_size: int = MAX_BEAM
) -> Model:
    """Loads the model in a directory and warms it up.

    Args:
        path: a logdir, or an export.
        n_best: largest number of translations of a sentence, for a logdir; an export has its own.
        overrides: `--set` texts, for a logdir.
        beam_size: hypotheses of a sentence that may be asked of a logdir.

    Raises:
        ValueError, OSError: it is neither, or it is damaged.
    """
    if (path / "model.json").exists():
        model: Model = Trained(path, n_best, overrides, beam_size)
    elif (path / "saved_model.pb").exists():
        model = Exported(path)
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
    texts: Sequence[str], n_best: int, overrides: Sequence[str] = (), beam_size: int = MAX_BEAM
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
    return {name: load(path, n_best, overrides, beam_size) for name, path in named}


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
