"""Compares the BLEU of an export with that of its model."""

from collections.abc import Callable

from lingvo_moe.data.dataset import Dataset
from lingvo_moe.evaluation.report import Report
from lingvo_moe.evaluation.scores import score_pair
from lingvo_moe.jobs.evaluation import translate_split
from lingvo_moe.jobs.model import Model
from lingvo_moe.serving.exported import Exported


def compare(
    trained: Model | Exported,
    exported: Model | Exported,
    dataset: Dataset,
    split: str,
    report: Callable[[str], None],
) -> Report:
    """The scores of an export, with the model that was trained as the baseline.

    Args:
        trained: the model that was trained.
        exported: the export; its pairs with lines in the split are translated.
        dataset: prepared data.
        split: "dev" or "test".
        report: takes lines of progress and warnings.

    Raises ValueError: there is no such pair.
    """
    has = {pair.name for pair in dataset.pairs if pair.examples.get(split)}
    pairs = [name for name in exported.pairs or sorted(has) if name in has]  # or it is imported
    if not pairs:
        raise ValueError(
            f"{dataset.directory} has no {split} lines of the exported pairs, so there is nothing "
            f"to compare; give other data or another split."
        )
    scores = []
    for name in pairs:
        both = [(name, model.translator()) for model in (exported, trained)]
        ours, theirs = translate_split(both, dataset, split, report)
        scores.append(score_pair(ours, theirs.hypotheses))
    return Report(
        model="export", checkpoint_step=None, split=split, pairs=scores, baseline_model="the model"
    )
