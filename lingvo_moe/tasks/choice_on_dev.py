"""Checks that the best of several models, or the best checkpoint, can be chosen on dev."""

from collections.abc import Sequence

from lingvo_moe.core.params import text_of
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.tasks.params import TranslationParams

_BY_CHRF = '--set="train.best_by=DevChrf()" --set=train.dev_bleu_sentences=300'


def check_comparable(
    names: Sequence[str], params: Sequence[TranslationParams], same_vocabularies: bool
) -> None:
    """Checks that results on dev of several models of a pair can be compared.

    Args:
        names: of the models.
        params: of the models.
        same_vocabularies: whether all have the same vocabularies.

    Raises:
        ValueError: they cannot, with what to set.
    """
    listed, criteria = ", ".join(names), [one.train.best_by for one in params]
    if len(set(criteria)) > 1:
        raise ValueError(
            f"{listed} have train.best_by={', '.join(map(text_of, criteria))}, whose values cannot"
            f" be compared. Pass {_BY_CHRF}."
        )
    if criteria[0].needs_translations:
        _check_equal_sentences(listed, [one.train.dev_bleu_sentences for one in params])
    else:
        _check_equal_lines(listed, params)
        if not same_vocabularies:
            raise ValueError(
                f"{listed} have vocabularies of other sizes, and their dev losses per piece cannot"
                f" be compared. Pass {_BY_CHRF}."
            )


def check_dev_lines(
    dataset: Dataset, pairs: Sequence[str], params: Sequence[TranslationParams], several: bool
) -> None:
    """Checks that each pair has dev lines where they choose its model or its checkpoint.

    Args:
        dataset: prepared data.
        pairs: to train.
        params: of all models.
        several: whether each pair is trained with several models.

    Raises:
        ValueError: a pair has none, with what to set.
    """
    without = [pair for pair in pairs if not dataset.pair(pair).examples.get("dev")]
    translated = any(one.train.best_by.needs_translations for one in params)
    if not without or not (several or translated):
        return
    rest = [pair for pair in pairs if pair not in without]
    alone = ["one --model"] if several else []
    alone += ['--set="train.best_by=DevLoss()"'] if translated else []
    others = f"Leave them out, with --pairs={','.join(rest)}, or pass" if rest else "Pass"
    raise ValueError(
        f"There are no dev lines, by which the best model or checkpoint is chosen, of "
        f"{', '.join(without)}. {others} {' and '.join(alone)}, which takes the last checkpoint."
    )


def _check_equal_sentences(names, counts):
    if len(set(counts)) > 1:
        raise ValueError(
            f"{names} have train.dev_bleu_sentences={', '.join(map(str, counts))}, so their scores"
            f" are of different lines. Pass --set=train.dev_bleu_sentences={max(counts)}."
        )


def _check_equal_lines(names, params):
    lengths = [(one.input.source_length, one.input.target_length) for one in params]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"{names} have rows of {', '.join(map(str, lengths))}"
            " source and target tokens. Longer dev lines are skipped, so their dev losses are over"
            " different lines and cannot be compared. Pass"
            f" --set=input.source_length={max(lengths)[0]}"
            f" --set=input.target_length={max(length for _, length in lengths)}."
        )
