"""The data card: a page about a dataset, from the statistics of preparation.

Sizes and lengths by pair, tokens by language, and what was dropped, with examples.
"""

import collections
import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lingvo_moe.data.cleaning.base import CleaningRule
from lingvo_moe.data.corpora import SentencePair
from lingvo_moe.data.dataset import SIDES, SPLITS, Dataset
from lingvo_moe.data.encoded import COUNTS
from lingvo_moe.data.pair_work import KEPT, PairWork, each_pair
from lingvo_moe.data.work import Work
from lingvo_moe.reporting.page import escape, write_page
from lingvo_moe.reporting.table import Table

# What a count means, besides those of rules, which their docstrings tell.
_LEFT_OUT = {
    "empty": "a side is blank (also in dev and test)",
    "duplicates": "the same as an earlier line",
    "held_out_in_train": "the source or the turned pair is in dev or test, with held_out_targets "
    "also the target",
    "too_long": "more than max_length tokens",
}
_COUNTED = {
    "targets_in_train": "lines of dev and test whose target is in train of any pair",
    "targets_changed": "lines of dev and test whose target the vocabulary cannot write exactly",
}
_ABOUT_TOKENS = (
    "Training text. A single byte is a piece for a character that has no piece of its own. Words "
    "are what spaces separate, so languages without spaces have many tokens per word."
)
_SAMPLES, _LONGEST = 4, 160  # examples of a reason, characters of a text
_QUANTILES = (0.5, 0.95)


class Dropped(NamedTuple):
    """A dropped line.

    Attributes:
        pair: "de-en".
        line: its number in train, from 1.
        texts: source and target.
    """

    pair: str
    line: int
    texts: SentencePair


@dataclasses.dataclass(frozen=True)
class CardStatistics:
    """What the card shows.

    Attributes:
        lengths: pair -> quantiles of the lengths of source and target in tokens: [2, 2].
        counts: side -> language -> `encoded.COUNTS` of train, summed over pairs.
        dropped: reason -> the first dropped lines of some pairs.
    """

    lengths: Mapping[str, np.ndarray]
    counts: Mapping[str, Mapping[str, np.ndarray]]
    dropped: Mapping[str, Sequence[Dropped]]


def write_card(directory: Path, work: Work, dataset: Dataset) -> None:
    """Writes index.html and card.json, after all stages have finished."""
    statistics = collect(work)
    meanings = {rule.name: _first_sentence(rule) for rule in work.params.cleaning} | _LEFT_OUT
    parts = _parts(dataset, statistics, meanings)
    write_page(directory, "Data card", parts, {}, {"card": _numbers(statistics)})


def collect(work: Work) -> CardStatistics:
    """Reads the statistics of finished stages, pair by pair."""
    lengths: dict[str, np.ndarray] = {}
    counts: dict[str, dict[str, Any]] = {side: collections.defaultdict(int) for side in SIDES}
    dropped: dict[str, list[Dropped]] = collections.defaultdict(list)
    for pair in each_pair(work):
        blocks = range(len(pair.block_lines("train")))
        loaded = [pair.load_ids("train", number, "lengths", "counts") for number in blocks]
        lengths[pair.pair.name] = length_quantiles(length_histogram(block[0] for block in loaded))
        for i, side in enumerate(SIDES):
            language = getattr(pair.pair, side)
            counts[side][language] += sum((b[1][i] for b in loaded), np.zeros(4, np.int64))
        _add_samples(dropped, pair)
    return CardStatistics(lengths, counts, {reason: dropped[reason] for reason in sorted(dropped)})


def length_histogram(blocks) -> np.ndarray:
    """[2, lengths + 1]: how many examples have each length, by side."""
    found = np.zeros((2, 1), np.int64)
    for lengths in blocks:
        longest = max(found.shape[1] - 1, int(lengths.max(initial=0)))
        found = np.pad(found, ((0, 0), (0, longest + 1 - found.shape[1])))
        for i in range(2):
            found[i] += np.bincount(lengths[:, i], minlength=longest + 1)
    return found


def length_quantiles(histogram: np.ndarray) -> np.ndarray:
    """[2, quantiles] of a histogram."""
    below = np.cumsum(histogram, axis=1)
    return np.array(
        [[np.searchsorted(row, q * row[-1]) if row[-1] else 0 for q in _QUANTILES] for row in below]
    )


def _add_samples(dropped: dict[str, list[Dropped]], pair: PairWork) -> None:
    """Adds the first dropped lines of a pair, one of each reason."""
    names = pair.reasons
    wanted = {n for n in (*names.values(), "too_long") if len(dropped.get(n, ())) < _SAMPLES}
    start = 1
    for number, lines in enumerate(pair.block_lines("train")):
        if not wanted:
            return
        for name, i in _first_dropped(pair, number, names):
            if name in wanted:
                line = pair.block("train", number)[i]
                dropped[name].append(Dropped(pair.pair.name, start + i, line))
                wanted.remove(name)
        start += lines


def _first_dropped(pair: PairWork, number: int, names) -> Iterator[tuple[str, int]]:
    verdicts = pair.verdicts("train", number)
    codes, places = np.unique(verdicts, return_index=True)
    yield from ((names[c], int(i)) for c, i in zip(codes, places, strict=True) if c != KEPT)
    (fits,) = pair.load_ids("train", number, "fits")
    if not fits.all():
        yield "too_long", int(np.flatnonzero(verdicts == KEPT)[np.argmin(fits)])


def _parts(dataset, statistics, meanings) -> Iterator[str]:
    pairs = sorted(dataset.pairs, key=lambda pair: -pair.examples.get("train", 0))
    total = {split: sum(p.examples.get(split, 0) for p in pairs) for split in SPLITS}
    sizes = ", ".join(f"{total[split]:,} {split}" for split in SPLITS)
    languages = {getattr(pair, side) for pair in pairs for side in SIDES}
    yield f"<p>{len(pairs)} language pairs, {len(languages)} languages; examples: {sizes}.</p>"
    rows = [
        (side, f"{vocabulary.size:,}", vocabulary.normalization)
        for side, vocabulary in zip(
            SIDES, (dataset.source_vocabulary, dataset.target_vocabulary), strict=True
        )
    ]
    yield Table(("vocabulary", "pieces", "normalization"), rows).to_html()
    yield "<h2>Tokens</h2>" + _tokens(statistics.counts).to_html()
    yield f'<p class="mark">{_ABOUT_TOKENS}</p>'
    yield "<h2>Lines of train that were left out</h2>" + _totals(dataset, meanings).to_html()
    yield "<h2>Lines that were counted and kept</h2>" + _totals(dataset, _COUNTED).to_html()
    for reason, lines in statistics.dropped.items():
        yield f"<h2>Examples: {escape(reason)}</h2>" + _samples(lines).to_html()
    yield "<h2>Language pairs</h2>" + _pairs_table(dataset, pairs, statistics.lengths).to_html()


def _tokens(counts) -> Table:
    """A row for each language of each side, most tokens per character first."""
    rows = [
        (f"{language} ({side})", pieces / characters, pieces / words, 100 * single / max(pieces, 1))
        for side, languages in counts.items()
        for language, (pieces, single, words, characters) in languages.items()
        if characters
    ]
    rows.sort(key=lambda row: -row[1])
    columns = ("language", "tokens per character", "tokens per word", "% single bytes")
    return Table(columns, [(name, *(f"{n:.2f}" for n in numbers)) for name, *numbers in rows])


def _first_sentence(rule: CleaningRule) -> str:
    text = " ".join((inspect.getdoc(rule) or "").split("\n\n")[0].split())
    return text.partition(". ")[0].removesuffix(".")


def _totals(dataset, meanings) -> Table:
    totals = {kind: sum(c[kind] for c in dataset.checks.values()) for kind in _kinds(dataset)}
    rows = [(kind, meanings[kind], f"{n:,}") for kind, n in totals.items() if kind in meanings]
    return Table(("count", "what it means", "lines"), rows, texts=2)


def _samples(lines: Sequence[Dropped]) -> Table:
    rows = [
        (f"{line.pair}, line {line.line:,}", *(_short(text) for text in line.texts))
        for line in lines
    ]
    return Table(("train", "source", "target"), rows, texts=3)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _pairs_table(dataset, pairs, lengths) -> Table:
    kinds = _kinds(dataset)
    columns = [f"{side} tokens, {name}" for side in SIDES for name in ("median", "95 %")]
    rows = [
        [pair.name, *(f"{pair.examples.get(split, 0):,}" for split in SPLITS)]
        + [f"{dataset.checks[pair.name][kind]:,}" for kind in kinds]
        + [f"{length:,}" for length in lengths[pair.name].ravel()]
        for pair in pairs
    ]
    return Table(("pair", *SPLITS, *kinds, *columns), rows)


def _kinds(dataset) -> list[str]:
    return list(next(iter(dataset.checks.values())))


def _numbers(statistics: CardStatistics) -> dict[str, Any]:
    return {
        "lengths": {
            name: {side: [int(n) for n in row] for side, row in zip(SIDES, values, strict=True)}
            for name, values in statistics.lengths.items()
        },
        "counts": {
            side: {
                language: dict(zip(COUNTS, map(int, values), strict=True))
                for language, values in languages.items()
            }
            for side, languages in statistics.counts.items()
        },
        "dropped": {
            reason: [[line.pair, line.line, *line.texts] for line in lines]
            for reason, lines in statistics.dropped.items()
        },
    }
