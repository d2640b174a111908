"""The data card: a page with the counts of a dataset, and examples of the lines left out."""

import collections
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lingvo_moe.data.dataset import SIDES, SPLITS, Dataset
from lingvo_moe.data.prepare_pair import KEPT, PairWork, Work, each_pair
from lingvo_moe.reporting.page import escape, write_page
from lingvo_moe.reporting.table import Table

_SAMPLES, _LONGEST = 4, 160  # examples of a reason, characters of a text


def write_card(directory: Path, work: Work, dataset: Dataset) -> None:
    """Writes index.html, after all stages have finished."""
    write_page(directory, "Data card", _parts(work, dataset), {})


def counts_table(dataset: Dataset) -> Table:
    """Each pair's examples and the counts of checks, the largest pair first."""
    kinds = list(next(iter(dataset.checks.values())))
    rows = [
        [pair.name, *(f"{pair.examples.get(split, 0)}" for split in SPLITS)]
        + [f"{dataset.checks[pair.name][kind]}" for kind in kinds]
        for pair in sorted(dataset.pairs, key=lambda pair: -pair.examples.get("train", 0))
    ]
    return Table(("pair", *SPLITS, *kinds), rows)


def _parts(work: Work, dataset: Dataset) -> Iterator[str]:
    sizes = (f"{side}: {getattr(dataset, f'{side}_vocabulary').size:,} pieces" for side in SIDES)
    yield f"<p>{len(dataset.pairs)} language pairs; vocabularies: {', '.join(sizes)}.</p>"
    yield counts_table(dataset).to_html("examples, and lines that the checks counted")
    dropped: dict[str, list[tuple[str, ...]]] = collections.defaultdict(list)
    for pair in each_pair(work):
        _add_samples(dropped, pair)
    for reason, lines in sorted(dropped.items()):
        table = Table(("train", "source", "target"), lines, texts=3)
        yield f"<h2>Left out: {escape(reason)}</h2>{table.to_html()}"


def _add_samples(dropped: dict[str, list[tuple[str, ...]]], pair: PairWork) -> None:
    """Adds the first dropped line of a pair for each reason, while there are few of a reason."""
    names = pair.reasons
    wanted = {n for n in (*names.values(), "too_long") if len(dropped.get(n, ())) < _SAMPLES}
    first = 1
    for number, count in enumerate(pair.block_lines["train"]):
        verdicts = pair.verdicts("train", number)
        codes, places = np.unique(verdicts, return_index=True)
        found = {names[c]: int(i) for c, i in zip(codes, places, strict=True) if c != KEPT}
        (fits,) = pair.load_ids("train", number, "fits")
        if not fits.all():
            found["too_long"] = int(np.flatnonzero(verdicts == KEPT)[np.argmin(fits)])
        for name in wanted & found.keys():
            line = pair.block("train", number)[found[name]]
            texts = (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…" for text in line)
            dropped[name].append((f"{pair.pair.name}, line {first + found[name]:,}", *texts))
            wanted.remove(name)
        if not wanted:
            return
        first += count
