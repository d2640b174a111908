"""Loads logdirs and exports as models of the server."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import logging

from lingvo_moe.data.sentences import Part, left_out
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.runtimes.local import Local
from lingvo_moe.server.model import Model, OptionLimits, Size, TooLong
from lingvo_moe.serving.exported import Exported, is_saved_model
from lingvo_moe.tasks.model import Model as TrainedModel
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.translation import RuntimeFn
from lingvo_moe.tasks.translator import Translator

_TAG_AND_EOS = 2


class _Checks:
    """Checks the options of requests to one model."""

    def __init__(self, limits: OptionLimits, own: BeamSearchParams, part_pieces: int):
        """Makes the checks; own are the model's options, which are always allowed."""
        self._own = own
        self._largest = {
            "n_best": limits.n_best,
            "beam_size": max(limits.beam_size, own.beam_size),
        }
        self._longest = max(limits.output_tokens, own.longest(part_pieces + _TAG_AND_EOS))

    def check(self, search: BeamSearchParams) -> None:
        """Checks numbers.

        Raises:
            ValueError: one is too large.
        """
        for name, largest in self._largest.items():
            if getattr(search, name) > largest:
                raise ValueError(
                    f"{name} must be 1 to {largest} on this server, got {getattr(search, name)}; "
                    f"give a smaller value."
                )

    def size(self, number: int, parts: Sequence[Part], room: int, search: BeamSearchParams) -> Size:
        """The size of a sentence of a request, of which at most `room` pieces of a part are read.

        Raises:
            TooLong: its translation may be too long.
        """
        read = [min(part.size, room) for part in parts]
        longest, own = (
            sum(params.longest(pieces + _TAG_AND_EOS) for pieces in read)
            for params in (search, self._own)
        )
        if longest > (allowed := max(self._longest, own)):
            raise TooLong(
                f"With length_ratio={search.length_ratio:g} and length_offset="
                f"{search.length_offset} the translation of sentence {number} may have {longest:,} "
                f"tokens, but at most {allowed:,} are allowed; give smaller values, or raise "
                f"--max_output_tokens of the server."
            )
        return Size(sum(read), left_out(parts, room), longest)


class Trained(TrainedModel):
    """The model of a logdir, with limits for requests."""

    options: Sequence[str] = [
        field.name
        for field in dataclasses.fields(BeamSearchParams)
        if field.name not in ("batch_tokens", "cache", "rules")
    ]
    scores = explains = True

    def __init__(
        self,
        path: Path,
        limits: OptionLimits,
        overrides: Sequence[str] = (),
        make_runtime: RuntimeFn = Local,
    ):
        """Loads the best checkpoint.

        Args:
            path: the logdir.
            limits: of requests.
            overrides: `--set` texts.
            make_runtime: makes its runtime.

        Raises:
            ValueError, OSError: path is not a logdir, or has no checkpoint.
        """
        super().__init__(ModelDir.open(path).with_overrides(overrides), make_runtime)
        self.n_best = limits.n_best
        own = self.params.decoding.filled(self._translator.fitted)
        self._checks = _Checks(limits, own, self._translator.part_pieces)
        # The server does not count tag and EOS; twice its limit has room for them.
        self._batch_tokens = 2 * limits.batch_tokens

    def translator(self, **decoding: Any) -> Translator:
        """See TrainedModel; a batch of the server is one batch, unless a split sentence exceeds it.

        Raises:
            ValueError: also if there is no shortlist. It is for clients, so it has no path of this
                machine; the reason is logged.
        """
        if decoding.get("shortlist") is True:
            assert self._translator.shortlist
            try:
                self._translator.shortlist()
            except ValueError as error:
                logging.log_first_n(logging.WARNING, "%s", 1, error)
                raise ValueError(
                    "This model has no shortlist that can be read; leave shortlist out, or make "
                    "one with lingvo-moe-shortlist."
                ) from error
        return super().translator(**{"n_best": 1, **decoding, "batch_tokens": self._batch_tokens})

    def measure(self, sentences: Sequence[str], **options: Any) -> list[Size]:
        """See Model."""
        translator = self.translator(**options)
        search = translator.decoding.filled(translator.fitted)
        self._checks.check(search)
        return [
            self._checks.size(number, parts, translator.part_pieces, search)
            for number, parts in enumerate(translator.split(sentences), start=1)
        ]

    def sizes(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[int, int]]:
        """See Model."""
        texts = (("source", sources), ("target", targets))
        ids = [self.logdir.vocabulary(side).encode(given) for side, given in texts]
        return [(len(source), len(target)) for source, target in zip(*ids, strict=True)]


class Served(Exported):
    """An export, with limits for requests."""

    explains = False

    def __init__(self, path: Path, limits: OptionLimits):
        """Loads it; limits as for `Trained`.

        Raises:
            ValueError, OSError: path is no export, or is damaged.
        """
        super().__init__(path)
        self.n_best = min(limits.n_best, self.n_best)
        limits = dataclasses.replace(limits, n_best=self.n_best)
        own = self.search_with({}).filled(self.fitted)
        self._checks = _Checks(limits, own, self.part_pieces)

    def measure(self, sentences: Sequence[str], **options: Any) -> list[Size]:
        """See Model."""
        search = self.search_with(options).filled(self.fitted)
        self._checks.check(search)
        return [
            self._checks.size(number, parts, self.part_pieces, search)
            for number, parts in enumerate(self._split(sentences, search), start=1)
        ]

    def sizes(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[int, int]]:
        """See Model."""
        counts = (self.count_pieces(sources), self.count_target_pieces(targets))
        return list(zip(*counts, strict=True))


def load(
    path: Path,
    limits: OptionLimits,
    overrides: Sequence[str] = (),
    make_runtime: RuntimeFn = Local,
) -> Model:
    """Loads the model in a directory and warms it up.

    Args:
        path: a logdir, or an export.
        limits: of requests.
        overrides, make_runtime: for a logdir, see `Trained`; an export ignores them.

    Raises:
        ValueError, OSError: path is neither a logdir nor an export, or is damaged.
    """
    if is_saved_model(path):
        model: Model = Served(path, limits)
    else:
        model = Trained(path, limits, overrides, make_runtime)
    source, _, target = model.pairs[0].rpartition("-") if model.pairs else [model.languages[0]] * 3
    # The first call compiles.
    model.translate(["a"], target, source_language=source, n_best=1, warn=lambda line: None)
    return model


def load_all(
    texts: Sequence[str],
    limits: OptionLimits,
    overrides: Sequence[str] = (),
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
    return {name: load(path, limits, overrides, make_runtime) for name, path in named}


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
