"""The columns of a report, each in one place: name, form, meaning and measurement.

A value that only the model or the dataset knows is put into `PairOutput.measures` by whoever knows
it; all others are computed from the texts. `Metric` policies add columns of their own.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lingvo_moe.evaluation import tokenizers
from lingvo_moe.evaluation.scores import PairOutput

# Outside these length ratios a score says more about the length than about the words.
SHORT, LONG = 0.8, 1.25


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of numbers."""

    name: str  # of the column in tables
    key: str  # of the value: an attribute of PairScore and Averages, or a key of their `measures`
    note: str = ""  # what it is, for readers of the report
    digits: int = 1  # decimals that are shown
    factor: float = 1.0  # of what is shown; 100 for a share in percent
    signed: bool = False  # whether a sign is shown
    mark: Callable[[Any], str] = lambda scores: ""  # what stands behind the number of a pair
    # computes it from (output, BLEU's tokenizer), None if that is not possible; without a function
    # the value is given in `PairOutput.measures`
    measure: Callable[[PairOutput, str], float | None] | None = None
    hidden_at: float | None = None  # the column is left out if all pairs have this value or none

    def value(self, scores: Any) -> float | None:
        """The value in a PairScore or in Averages; None if there is none."""
        return scores.measures.get(self.key, getattr(scores, self.key, None))

    def cell(self, scores: Any) -> str:
        """The value as people read it."""
        if (value := self.value(scores)) is None:
            return "–"
        sign = "+" if self.signed else ""
        return f"{self.factor * value:{sign}.{self.digits}f}{self.mark(scores)}"


def _floor(output: PairOutput, tokenizer: str) -> float | None:
    if output.nearest is None:
        return None
    return tokenizers.bleu(tokenizer).corpus_score(output.nearest, [output.references]).score


def _brevity_penalty(output: PairOutput, tokenizer: str) -> float:
    return tokenizers.bleu(tokenizer).corpus_score(output.hypotheses, [output.references]).bp


def length_ratio(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Characters of translations over those of references."""
    return sum(map(len, hypotheses)) / max(sum(map(len, references)), 1)


def _empty(output: PairOutput, tokenizer: str) -> float:
    pairs = list(zip(output.sources, output.hypotheses, strict=True))
    return sum(bool(source.strip()) and not text.strip() for source, text in pairs) / len(pairs)


def _copied(output: PairOutput, tokenizer: str) -> float:
    texts = list(zip(output.sources, output.hypotheses, output.references, strict=True))
    return sum(bool(s.strip()) and s == text != reference for s, text, reference in texts) / len(
        texts
    )


SCORES = (  # of every report
    Column("BLEU", "bleu"),
    Column("baseline", "baseline_bleu"),
    Column("ΔBLEU", "delta_bleu", signed=True),
    Column("p", "p_value", digits=3, mark=lambda score: "*" * score.significant),
    Column("chrF++", "chrf"),
)


def _share(
    name: str, key: str, note: str, measure: Callable[[PairOutput, str], float | None] | None = None
) -> Column:
    """A share, in percent; the column is left out where it is 0."""
    note = f"{name}: share of {note}"
    return Column(f"{name} %", key, note, factor=100, measure=measure, hidden_at=0)


MEASURES = (  # where they are known
    Column(
        "floor",
        "floor",
        "floor: BLEU of the target of the most similar training sentence",
        measure=_floor,
    ),
    Column("source use", "source_use", digits=2),
    Column(
        "length",
        "length_ratio",
        "length: characters of the translations over those of the references",
        digits=2,
        measure=lambda output, _: length_ratio(output.hypotheses, output.references),
    ),
    Column(
        "brevity",
        "brevity_penalty",
        "brevity: BLEU's penalty of short translations",
        digits=2,
        measure=_brevity_penalty,
        hidden_at=1,
    ),
    _share("empty", "empty", "sources with an empty translation", _empty),
    _share(
        "copied", "copied", "translations that are their source, where references differ", _copied
    ),
    _share("off-target", "off_target", "translations that are not in the target language"),
    _share("of refs", "references_off_target", "references so, as the error of the classifier"),
    _share("left out", "left_out", "the training text, in target tokens, in lines over a row"),
)


def measured(output: PairOutput, tokenizer: str) -> dict[str, float]:
    """Key -> value of each measure of a pair that is known; tokenizer: BLEU's, of sacreBLEU."""
    functions = {column.key: column.measure for column in MEASURES if column.measure}
    found = {key: measure(output, tokenizer) for key, measure in functions.items()}
    return {key: value for key, value in found.items() if value is not None} | {**output.measures}


def shown(scores: Sequence[Any]) -> list[Column]:
    """The measures that a table of these scores has."""
    return [
        column
        for column in MEASURES
        if any(column.value(score) not in (None, column.hidden_at) for score in scores)
    ]


def length_warnings(ratios: Mapping[str, float]) -> list[str]:
    """A line on pairs whose translations are much shorter or longer than the references.

    Args:
        ratios: pair or target language -> length ratio.
    """
    found = {pair: ratio for pair, ratio in ratios.items() if not SHORT <= ratio <= LONG}
    if not found:
        return []
    few = sorted(found, key=found.__getitem__)
    listed = ", ".join(f"{pair} {found[pair]:.2f}" for pair in (few[:3] + few[3:][-2:]))
    return [
        f"Warning: translations of {len(found)} of {len(ratios)} ({listed}) are shorter than "
        f"{SHORT} or longer than {LONG} times the references. Their scores say more about length "
        f"than about words: see decoding.length_penalty."
    ]
