"""Compares an export with its model: BLEU and size."""

import dataclasses
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

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

    They have lines in the split, and if the model routes by task, it has experts for them.

    Args:
        model_dir: the model.
        dataset: prepared data.
        split: "dev" or "test".
        exported: names of pairs; None for all pairs of the model.

    Raises:
        ValueError: the dataset does not fit the model, or no pair is left.
    """
    model_dir = model_dir.for_dataset(dataset)
    task = model_dir.task
    known = [name for name in model_dir.pairs if task.has_experts_for(name)]
    pairs = [name for name in known if dataset.pair(name).examples.get(split)]
    if exported is not None:
        pairs = [name for name in pairs if name in exported]
    if not pairs:
        of = "a pair" if exported is None else f"the exported pairs {', '.join(exported)}"
        raise ValueError(
            f"{dataset.directory} has no {split} lines of {of} that the model can translate, so "
            f"there is nothing to compare. Give other data or another split, or export without a "
            f"report."
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
