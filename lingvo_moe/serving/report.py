"""Compares the BLEU of an export with that of its model."""

from collections.abc import Callable
from typing import Any

from lingvo_moe.data.dataset import Dataset
from lingvo_moe.evaluation.scores import score_pair
from lingvo_moe.jobs.evaluation import translate_pair
from lingvo_moe.jobs.model import Model
from lingvo_moe.reporting.table import Table
from lingvo_moe.serving.exported import Exported


def compare(
    trained: Model | Exported,
    exported: Model | Exported,
    dataset: Dataset,
    split: str,
    report: Callable[[str], None],
) -> Table:
    """The BLEU of a model and of its export, for each pair.

    Args:
        trained: the model that was trained.
        exported: the export.
        dataset: prepared data.
        split: "dev" or "test".
        report: takes warnings of sentences that are too long.

    Returns a row for each pair of the export with lines in the split: lines, BLEU of both, and the
    difference; and the means. Raises ValueError: there is no such pair.
    """
    has = {pair.name for pair in dataset.pairs if pair.examples.get(split)}
    pairs = [name for name in exported.pairs or sorted(has) if name in has]  # or it is imported
    if not pairs:
        raise ValueError(
            f"{dataset.directory} has no {split} lines of the exported pairs, so there is nothing "
            f"to compare; give other data or another split."
        )
    rows: list[tuple[Any, ...]] = []
    for name in pairs:
        outputs = [
            translate_pair(_translate(model), dataset, split, name, report)
            for model in (trained, exported)
        ]
        scores = [score_pair(output).bleu for output in outputs]
        rows.append((name, len(outputs[0].sources), *scores))
    total = sum(row[1] for row in rows)
    means = (sum(row[column] for row in rows) / len(rows) for column in (2, 3))
    *cells, mean = [_cells(row) for row in (*rows, ("mean", total, *means))]
    return Table(("pair", "lines", "trained", "exported", "delta"), cells, [mean])


def _translate(model):
    def translate(sentences, to, source_language=None, **options):
        return model.translate(sentences, to, source_language=source_language, **options)

    return translate


def _cells(row):
    name, lines, trained, exported = row
    return name, f"{lines:,}", f"{trained:.2f}", f"{exported:.2f}", f"{exported - trained:+.2f}"
