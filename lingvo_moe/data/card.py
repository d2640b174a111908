"""The data card: a page about a dataset, of what preparation has seen.

Sizes and lengths by pair, tokens by language, and what was dropped, with examples.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from lingvo_moe.data.corpora import SentencePair
from lingvo_moe.data.dataset import SIDES, SPLITS, Dataset, PairInfo
from lingvo_moe.data.encoded import COUNTS
from lingvo_moe.data.stages import HELD_OUT, KEPT, REPEATED, PairWork, Work
from lingvo_moe.reporting.figure import COLORS, GREY, legible, to_png
from lingvo_moe.reporting.page import escape, image, write_page
from lingvo_moe.reporting.table import Table

_NOTE = (
    "empty also counts lines of dev and test. targets_in_train are lines of dev and test, which "
    "are kept. The tokens a word of languages without spaces mean little."
)
_SAMPLES, _LONGEST = 4, 160  # examples of a reason, characters of a text
_QUANTILES = (0.5, 0.95)
_ROWS = 40  # pairs or languages of a picture's row


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
class Statistics:
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
    """Writes index.html, its pictures and card.json, of finished stages."""
    statistics = collect(work)
    pairs = sorted(dataset.pairs, key=lambda pair: -pair.examples.get("train", 0))
    pictures = {
        "sizes": draw_pairs(pairs, statistics.lengths),
        "tokens": draw_tokens(statistics.counts),
    }
    parts = _parts(dataset, pairs, statistics, pictures)
    write_page(directory, "Data card", parts, pictures, {"card": _numbers(statistics)})


def collect(work: Work) -> Statistics:
    """Reads the statistics of finished stages, pair by pair."""
    lengths: dict[str, np.ndarray] = {}
    counts: dict[str, dict[str, Any]] = {side: collections.defaultdict(int) for side in SIDES}
    dropped: dict[str, list[Dropped]] = collections.defaultdict(list)
    for pair in work.each_pair():
        blocks = range(len(pair.block_lines("train")))
        loaded = [pair.load_ids("train", number, "lengths", "counts") for number in blocks]
        lengths[pair.pair.name] = _quantiles(_histogram(block[0] for block in loaded))
        for i, side in enumerate(SIDES):
            language = getattr(pair.pair, side)
            counts[side][language] += sum((b[1][i] for b in loaded), np.zeros(4, np.int64))
        _add_samples(dropped, pair)
    return Statistics(lengths, counts, {reason: dropped[reason] for reason in sorted(dropped)})


def _histogram(blocks) -> np.ndarray:
    """[2, lengths + 1]: how many examples have each length, by side."""
    found = np.zeros((2, 1), np.int64)
    for lengths in blocks:
        longest = max(found.shape[1] - 1, int(lengths.max(initial=0)))
        found = np.pad(found, ((0, 0), (0, longest + 1 - found.shape[1])))
        for i in range(2):
            found[i] += np.bincount(lengths[:, i], minlength=longest + 1)
    return found


def _quantiles(histogram: np.ndarray) -> np.ndarray:
    """[2, quantiles] of a histogram."""
    below = np.cumsum(histogram, axis=1)
    return np.array(
        [[np.searchsorted(row, q * row[-1]) if row[-1] else 0 for q in _QUANTILES] for row in below]
    )


def _add_samples(dropped: dict[str, list[Dropped]], pair: PairWork) -> None:
    """Adds the first dropped lines of a pair, one of each reason."""
    names = {code: rule.name for code, rule in enumerate(pair.rules, 1)}
    names |= {REPEATED: "duplicates", HELD_OUT: "held_out_in_train"}
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


def draw_pairs(pairs: Sequence[PairInfo], lengths: Mapping[str, np.ndarray]) -> bytes:
    """Sizes on a logarithmic scale, and lengths, of pairs in order."""
    names = [pair.name for pair in pairs]
    figure, (sizes, long) = _axes(names, 2)
    sizes.bar(range(len(pairs)), [pair.examples.get("train", 0) for pair in pairs], color=COLORS[0])
    sizes.set_yscale("log")
    sizes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    sizes.yaxis.set_minor_formatter(NullFormatter())
    sizes.set_ylim(1)
    sizes.set_ylabel("training pairs")
    for i, side in enumerate(SIDES):
        values = np.array([lengths[name][i] for name in names])
        long.plot(values[:, 0], "o", color=COLORS[i], markersize=3, label=f"{side}, median")
        long.plot(values[:, 1], "_", color=COLORS[i], label=f"{side}, 95 % are shorter")
    long.set_ylabel("tokens of an example")
    long.set_ylim(0)
    long.legend(frameon=False, ncols=4, fontsize=8)
    return to_png(figure)


def draw_tokens(counts: Mapping[str, Mapping[str, np.ndarray]]) -> bytes:
    """Fertility and byte fallback of each side's languages, most tokens a character first."""
    rows = {
        (side, language): values
        for side, languages in counts.items()
        for language, values in languages.items()
        if values[COUNTS.index("characters")]
    }
    order = sorted(rows, key=lambda key: -rows[key][0] / rows[key][3])
    names = [f"{language} ({side})" for side, language in order]
    figure, axes = _axes(names, 3)
    pieces, single, words, characters = np.array([rows[key] for key in order], float).T
    colors = [COLORS[SIDES.index(side)] for side, _ in order]
    titles = ("tokens a character", "tokens a word", "% single bytes")
    values = (pieces / characters, pieces / words, 100 * single / np.maximum(pieces, 1))
    for axis, title, value in zip(axes, titles, values, strict=True):
        axis.bar(range(len(order)), value, color=colors)
        axis.set_ylabel(title)
    return to_png(figure)


def _axes(names: Sequence[str], count: int) -> tuple[Figure, Sequence[Axes]]:
    """Axes below one another over the same names."""
    width = min(max(6.0, 2 + 0.13 * len(names)), 20)
    figure = Figure((width, 1.0 + 2.0 * count), dpi=110, layout="constrained")
    axes = np.atleast_1d(figure.subplots(count, 1, sharex=True))
    for axis in axes:
        axis.grid(axis="y", color="#eceff2", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.tick_params(colors=GREY, labelcolor="black")
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[-1].set_xlim(-0.8, len(names) - 0.2)
    axes[-1].set_xticks(range(len(names)))
    labels = [legible(name, 24) for name in names]
    size = 9 if len(names) <= _ROWS else max(4.0, 9.0 - len(names) / 40)
    axes[-1].set_xticklabels(labels, rotation=90, fontsize=size)
    return figure, list(axes)


def _parts(dataset, pairs, statistics, pictures) -> Iterator[str]:
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
    yield "<h2>Sizes and lengths</h2>" + image(pictures["sizes"], "Training pairs and lengths")
    yield "<h2>Tokens</h2>" + image(pictures["tokens"], "Tokens a character and a word, bytes")
    yield "<h2>What was dropped</h2>" + _reasons(dataset).to_html()
    yield f'<p class="mark">{_NOTE}</p>'
    for reason, lines in statistics.dropped.items():
        yield f"<h2>Examples: {escape(reason)}</h2>" + _samples(lines).to_html()
    yield "<h2>Language pairs</h2>" + _pairs_table(dataset, pairs).to_html()


def _reasons(dataset) -> Table:
    totals = {kind: sum(c[kind] for c in dataset.checks.values()) for kind in _kinds(dataset)}
    return Table(("reason", "lines"), [(kind, f"{n:,}") for kind, n in totals.items()])


def _samples(lines: Sequence[Dropped]) -> Table:
    rows = [
        (f"{line.pair}, line {line.line:,}", *(_short(text) for text in line.texts))
        for line in lines
    ]
    return Table(("train", "source", "target"), rows, texts=3)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _pairs_table(dataset, pairs) -> Table:
    kinds = _kinds(dataset)
    rows = [
        [pair.name, *(f"{pair.examples.get(split, 0):,}" for split in SPLITS)]
        + [f"{dataset.checks[pair.name][kind]:,}" for kind in kinds]
        for pair in pairs
    ]
    return Table(("pair", *SPLITS, *kinds), rows)


def _kinds(dataset) -> list[str]:
    return list(next(iter(dataset.checks.values())))


def _numbers(statistics: Statistics) -> dict[str, Any]:
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
