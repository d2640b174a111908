"""The length penalties of a checkpoint, by its translations of lines of dev.

A search prefers short translations, the more the less a model knows (Stahlberg and Byrne 2019), and
chrF++ alone prefers long ones. So of the penalties with which translations are about as long as
references, the smallest is taken whose chrF++ is not worse than the best one beyond chance. A
penalty rewards no more tokens than a source lets expect: without this bound the right mean length
is that of lines which are far too long, and of others which are too short. An unsure model spells
words with shorter pieces than the references have. If even the largest penalty gives texts shorter
than the references, the language gets a larger bound, and is translated again.

A penalties, N lines.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics import CHRF

from lingvo_moe.config.fields import FROM_DATA
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.decoding.fitted import Fitted
from lingvo_moe.inference.translator import Translator
from lingvo_moe.tasks.model_dir import ModelDir

# Near 1 the lengths change fastest. One search compares all, so that more cost little.
PENALTIES = (0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0, 2.4, 3.0)
# expected_ratio over the mean ratio of dev, and the most for languages that stay too short
_ROOM, _MOST_ROOM = 1.2, 1.5
_LINES = 300  # of all languages; more if they are many
_LINES_OF_LANGUAGE, _MOST_LINES = 100, 1000
_LEAST_OF_LANGUAGE = 10  # for its own penalty and a larger bound
_RATIOS = 0.95, 1.1  # characters of translations over those of references
_ERRORS = 1.645  # standard errors that chance exceeds in 5 % of cases

# (target language, source language if the model needs it) -> sources, references
Sample = Mapping[tuple[str, str | None], tuple[list[str], list[str]]]


class Measured(NamedTuple):
    """Translations of N lines by A penalties."""

    chrf: np.ndarray  # float64 [A, N], chrF++ of each line
    lengths: np.ndarray  # float64 [A, N], characters
    references: np.ndarray  # float64 [N], characters

    @staticmethod
    def of(translations: Sequence[Sequence[str]], references: Sequence[str]) -> "Measured":
        """Measures A translations of each of N lines."""
        chrf = CHRF(word_order=2)
        score = functools.cache(lambda *texts: chrf.sentence_score(*texts).score)
        lines = list(zip(translations, references, strict=True))
        return Measured(
            np.array([[score(text, (one,)) for text in texts] for texts, one in lines]).T,
            np.array([list(map(len, texts)) for texts in translations], float).T,
            np.array(list(map(len, references)), float),
        )

    @property
    def ratios(self) -> np.ndarray:
        """float64 [A]: characters of the translations over those of the references."""
        return self.lengths.sum(axis=1) / max(self.references.sum(), 1.0)

    def best(self) -> int:
        """The index of the penalty to take."""
        fair = (self.ratios >= _RATIOS[0]) & (self.ratios <= _RATIOS[1])
        if not fair.any():
            return int(np.argmin(np.abs(np.log(np.maximum(self.ratios, 1e-9)))))
        first = int(np.argmax(np.where(fair, self.chrf.mean(axis=1), -math.inf)))
        return next(a for a in np.flatnonzero(fair).tolist() if not self.is_worse(a, first))

    def is_worse(self, a: int, b: int) -> bool:
        """Whether chrF++ with penalty a is lower than with b beyond chance."""
        return bool(_certain(self.chrf[b] - self.chrf[a]) > 0)

    def is_unfair(self, a: int) -> bool:
        """Whether translations with penalty a are too short or too long beyond chance."""
        low, high = (self.lengths[a] - ratio * self.references for ratio in _RATIOS)
        return bool(_certain(-low) > 0 or _certain(high) > 0)


def _certain(values):
    """The mean of a sample, less what chance may add to it."""
    return values.mean() - _ERRORS * values.std() / math.sqrt(len(values))


def choose(measured: Mapping[str, Measured]) -> Fitted:
    """One penalty for all lines, and other ones for languages that need them beyond chance."""
    parts = zip(*measured.values(), strict=True)
    common = Measured(*(np.concatenate(part, axis=-1) for part in parts)).best()
    own = {}
    for language, lines in measured.items():
        a = lines.best()
        enough = len(lines.references) >= _LEAST_OF_LANGUAGE
        if a != common and enough and (lines.is_worse(common, a) or lines.is_unfair(common)):
            own[language] = PENALTIES[a]
    return Fitted(PENALTIES[common], own)


def share_out(count: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Spreads a number of sentences over pairs, as evenly as their sizes allow.

    Args:
        count: the number.
        sizes: pair -> its sentences.

    Returns pair -> its part. The parts sum to count, or to all sentences if there are fewer.
    """
    parts: dict[str, int] = {}
    for done, name in enumerate(sorted(sizes, key=sizes.__getitem__)):
        parts[name] = min(
            sizes[name], math.ceil((count - sum(parts.values())) / (len(sizes) - done))
        )
    return parts


def dev_sample(model_dir: ModelDir, dataset: Dataset, count: int | None = None) -> Sample:
    """Lines of dev, spread evenly over the pairs that the model translates, and over each one's.

    Args:
        model_dir: the model.
        dataset: prepared data.
        count: their number; None for as many as a fit needs.
    """
    pairs = [pair for pair in dataset.pairs if pair.name in model_dir.translated_pairs]
    if count is None:
        targets = {pair.target for pair in pairs}
        count = min(max(_LINES, _LINES_OF_LANGUAGE * len(targets)), _MOST_LINES)
    sizes = {pair.name: pair.examples.get("dev", 0) for pair in pairs}
    shares, needs_source = share_out(count, sizes), model_dir.task.needs_source_language
    sample: dict[tuple[str, str | None], tuple[list[str], list[str]]] = {}
    for pair in pairs:
        languages = pair.target, pair.source if needs_source else None
        sources, references = sample.setdefault(languages, ([], []))
        for i in range(share := shares[pair.name]):
            example = dataset.example("dev", pair, i * sizes[pair.name] // share)
            sources.append(example.source_text)
            references.append(example.target_text)
    return {languages: texts for languages, texts in sample.items() if texts[0]}


def is_fitted(model_dir: ModelDir, translator: Translator) -> bool:
    """Whether the length penalty of a model is to be fitted, and it can translate."""
    decoding = model_dir.params.decoding
    if decoding.length_penalty is not FROM_DATA or decoding.sampling:
        return False
    try:
        model_dir.task.check_request(translator.request)
    except ValueError:
        return False
    return True


def bounded(translator: Translator, dataset: Dataset) -> Translator:
    """A translator whose expected ratios are those of a dataset's dev lines."""
    ratios = {name: _ROOM * ratio for name, ratio in dataset.expected_ratios.items()}
    fitted = dataclasses.replace(translator.fitted, expected=ratios)
    return dataclasses.replace(translator, fitted=fitted)


def translate_and_fit(
    translator: Translator, sample: Sample, fits: bool
) -> tuple[Fitted, list[tuple[str, list[str], list[str]]]]:
    """Translates a sample. Returns the translator's Fitted, if `fits` with the penalties and bounds
    that fit best, and (target language, translations, references) of the sample."""
    found = _translate(translator, sample, PENALTIES if fits else ())
    fitted, place = translator.fitted, dict.fromkeys(found, 0)
    if fits:
        larger = _larger_bounds(translator, found)
        if larger:
            fitted = dataclasses.replace(fitted, expected={**fitted.expected, **larger})
            short = {names: texts for names, texts in sample.items() if names[0] in larger}
            found |= _translate(dataclasses.replace(translator, fitted=fitted), short, PENALTIES)
        chosen = choose({name: Measured.of(*texts) for name, texts in found.items()})
        fitted = dataclasses.replace(fitted, penalty=chosen.penalty, penalties=chosen.penalties)
        place = {name: PENALTIES.index(fitted.numbers(name)["length_penalty"]) for name in found}
    return fitted, [
        (name, [line[place[name]] for line in texts], references)
        for name, (texts, references) in found.items()
    ]


def _larger_bounds(translator, found) -> dict[str, float]:
    """Target language -> a larger expected_ratio, if translations by the largest penalty are
    shorter than the references."""
    bounds: dict[str, float] = {}
    known = translator.fitted.expected
    if translator.decoding.expected_ratio is not FROM_DATA:
        return bounds
    for name, (texts, references) in found.items():
        written, wanted = sum(len(line[-1]) for line in texts), sum(map(len, references))
        if name in known and len(references) >= _LEAST_OF_LANGUAGE and written < wanted:
            bounds[name] = known[name] * min(wanted / max(written, 1), _MOST_ROOM / _ROOM)
    return bounds


def _translate(translator, sample, penalties) -> dict[str, tuple[list[list[str]], list[str]]]:
    """Target language -> for each line the best translations by each penalty, and its reference."""
    every = dataclasses.replace(translator, penalties=penalties)
    found: dict[str, tuple[list[list[str]], list[str]]] = {}
    for languages, (sources, references) in sample.items():
        texts = [[one.text for one in best] for best in every(sources, *languages)]
        there = found.setdefault(languages[0], ([], []))
        there[0].extend(texts)
        there[1].extend(references)
    return found


def fit_penalties(
    model_dir: ModelDir,
    translator: Translator,
    dataset: Dataset,
    step: int,
    report: Callable[[str], None],
    writes: bool = True,
) -> Translator:
    """A translator with the length penalties of its checkpoint, fitted if they are not known.

    Args:
        model_dir: the logdir.
        translator: of the checkpoint.
        dataset: prepared data, for its dev lines.
        step: of the checkpoint.
        report: takes a line about the penalties.
        writes: whether to write them to the logdir; nothing is written if it is read-only.
    """
    if model_dir.has_penalties(step) or not is_fitted(model_dir, translator):
        return translator
    if not (sample := dev_sample(model_dir, dataset)):
        return translator
    lines = sum(len(sources) for sources, _ in sample.values())
    report(f"Fitting the length penalty on {lines} lines of dev …")
    fitted, _ = translate_and_fit(bounded(translator, dataset), sample, True)
    own = "".join(f", {name} {value:g}" for name, value in fitted.penalties.items())
    report(f"Length penalty: {fitted.penalty:g}{own}")
    if writes:
        with contextlib.suppress(OSError):
            model_dir.save_penalties(step, fitted)
    return dataclasses.replace(translator, fitted=fitted)
