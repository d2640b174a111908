"""Compares the BLEU of an export with that of its model."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lingvo_moe.data.dataset import Dataset
from lingvo_moe.evaluation.scores import score_pair
from lingvo_moe.reporting.table import Table
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving.exported import Exported
from lingvo_moe.tasks.evaluation import load_translator, translate_pair
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.translator import Translation

# (sentences, target language, source language, warn=…) -> n best translations of each
TranslateFn = Callable[..., list[list[Translation]]]


def of_saved_model(path: Path) -> TranslateFn:
    """The translations of a SavedModel."""
    exported = Exported(path)

    def translate(sentences, target_language, source_language, warn):
        return exported.translate(
            sentences, target_language, source_language=source_language, warn=warn
        )

    return translate


def of_logdir(path: Path) -> TranslateFn:
    """The translations of a logdir, or of an export that is read like one."""
    model_dir = ModelDir.open(path)
    return load_translator(model_dir, Local(model_dir.task))[0]


def of_ctranslate2(path: Path) -> TranslateFn:
    """The translations of an export for CTranslate2, without scores."""
    from lingvo_moe.serving import client_ctranslate2  # needs the optional package

    model = client_ctranslate2.Model(path)

    def translate(sentences, target_language, source_language, warn):
        del source_language
        return [
            [Translation(text, math.nan)]
            for text in model.translate(sentences, target_language, warn=warn)
        ]

    return translate


def directory_size(path: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def check_comparable(model_dir: ModelDir, dataset: Dataset, split: str) -> list[str]:
    """The pairs of the model that have lines in a split.

    Raises:
        ValueError: the dataset does not fit the model, or there are none.
    """
    model_dir.check_dataset(dataset)
    pairs = [name for name in model_dir.pairs if dataset.pair(name).examples.get(split)]
    if not pairs:
        raise ValueError(f"{dataset.directory} has no {split} lines; nothing to compare.")
    return pairs


def compare(
    trained: TranslateFn,
    exported: TranslateFn,
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


def _cells(row):
    name, lines, trained, exported = row
    return name, f"{lines:,}", f"{trained:.2f}", f"{exported:.2f}", f"{exported - trained:+.2f}"
