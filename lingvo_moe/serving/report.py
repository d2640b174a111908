"""Compares an export with its model: BLEU and size."""

import dataclasses
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from lingvo_moe.core.lines import first_of
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.evaluation.scores import score_pair
from lingvo_moe.reporting.table import Table
from lingvo_moe.serving.formats.base import Format, directory_size
from lingvo_moe.serving.formats.storage import FLOAT32
from lingvo_moe.tasks.evaluation import Translate, translate_pair
from lingvo_moe.tasks.model_dir import ModelDir


def comparable_pairs(
    model_dir: ModelDir, dataset: Dataset, split: str, exported: Collection[str] | None = None
) -> list[str]:
    """The exported pairs that can be compared.

    The model translates them, and they have lines in the split.

    Args:
        model_dir: the model.
        dataset: prepared data.
        split: "dev" or "test".
        exported: names of pairs; None for all pairs of the model.

    Raises:
        ValueError: the dataset does not fit the model, or no pair is left.
    """
    translated = model_dir.for_test_set(dataset)[0].translated_pairs
    if exported is not None:
        translated = tuple(name for name in translated if name in exported)
    pairs = [name for name in translated if dataset.pair(name).examples.get(split)]
    if not pairs:
        raise ValueError(
            f"{dataset.directory} has no {split} lines of the exported pairs"
            f" ({first_of(translated)}), so there is nothing to compare. Give other data or another"
            f" split, or export without a report."
        )
    return pairs


def compare(
    trained: Translate,
    exported: Translate,
    dataset: Dataset,
    split: str,
    pairs: list[str],
    report: Callable[[str], None],
) -> Table:
    """The BLEU of a model and of its export, for each pair.

    Args:
        trained: the model that was trained.
        exported: the export.
        dataset: prepared data.
        split: "dev" or "test".
        pairs: names of pairs with lines in that split.
        report: takes warnings of sentences that are too long.

    Returns:
        A row a pair: lines, BLEU of both, and the difference; and the means.
    """

    rows: list[tuple[Any, ...]] = []
    for name in pairs:
        outputs = [
            translate_pair(translate, dataset, split, name, report)
            for translate in (trained, exported)
        ]
        scores = [score_pair(output).bleu for output in outputs]
        rows.append((name, len(outputs[0].sources), *scores))
    total = sum(row[1] for row in rows)
    means = (sum(row[column] for row in rows) / len(rows) for column in (2, 3))
    *cells, mean = [_cells(row) for row in (*rows, ("mean", total, *means))]
    return Table(("pair", "lines", "trained", "exported", "delta"), cells, [mean])


def compare_sizes(chosen: Format, model_dir: ModelDir, output: Path, step: int) -> str:
    """A line with the size of an export and that of the whole model in float32.

    The second is the size of an export in the same format, which is made beside the output and
    removed.

    Args:
        chosen: the format of the export.
        model_dir: the trained model.
        output: the export.
        step: of its checkpoint.
    """
    with tempfile.TemporaryDirectory(dir=output.absolute().parent) as directory:
        whole = Path(directory) / "export"
        dataclasses.replace(chosen, storage=FLOAT32).export(model_dir, whole, step)
        sizes = [directory_size(path) for path in (output, whole)]
    size, full = (f"{size / 1e6:,.2f} MB" for size in sizes)
    return f"{size}, {sizes[0] / sizes[1]:.1%} of the whole model in float32 ({full})"


def _cells(row):
    name, lines, trained, exported = row
    return name, f"{lines:,}", f"{trained:.2f}", f"{exported:.2f}", f"{exported - trained:+.2f}"
