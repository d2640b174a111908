"""The measured columns of a report, each in one place: name, form, meaning and measurement.

A value that only the model or the dataset knows is put into `PairOutput.measures` by whoever knows
it; all others are computed from the texts. `Metric` policies add columns of their own.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from lingvo_moe.evaluation import tokenizers
from lingvo_moe.evaluation.scores import PairOutput

# Outside these length ratios a score says more about the length than about the words.
SHORT, LONG = 0.8, 1.25


@dataclasses.dataclass(frozen=True)
class Column:
    """A column that may not have been measured.

    Attributes:
        name: of the column in tables.
        key: of the value in report.json, and in `PairOutput.measures` if it comes from there.
        note: what it is, for readers of the report.
        digits: decimals that are shown.
        factor: of what is shown; 100 for a share in percent.
        measure: computes it from (output, BLEU's tokenizer); None to take what is given.
        hidden_at: the column is left out if all pairs have this value.
    """

    name: str
    key: str
    note: str = ""
    digits: int = 1
    factor: float = 1.0
    measure: Callable[[PairOutput, str], float | None] | None = None
    hidden_at: float | None = None

    def value(self, output: PairOutput, tokenizer: str) -> float | None:
        """The value of a pair; None if it was not measured.

        Args:
            output: translations and what else was measured.
            tokenizer: sacreBLEU's name of the tokenizer for BLEU.
        """
        given = output.measures.get(self.key)
        return self.measure(output, tokenizer) if self.measure and given is None else given

    def is_shown(self, values: Sequence[float | None]) -> bool:
        """Whether a table has the column; `values` are those of the pairs."""
        return any(value not in (None, self.hidden_at) for value in values)

    def cell(self, value: float | None) -> str:
        """A value as people read it."""
        return "–" if value is None else f"{self.factor * value:.{self.digits}f}"


def _floor(output: PairOutput, tokenizer: str) -> float | None:
    if output.nearest is None:
        return None
    return tokenizers.bleu(tokenizer).corpus_score(output.nearest, [output.references]).score


def _brevity_penalty(output: PairOutput, tokenizer: str) -> float:
    return tokenizers.bleu(tokenizer).corpus_score(output.hypotheses, [output.references]).bp


def length_ratio(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Characters of translations over those of references."""
    return sum(map(len, hypotheses)) / max(sum(map(len, references)), 1)


def _length_ratio(output: PairOutput, tokenizer: str) -> float:
    del tokenizer
    return length_ratio(output.hypotheses, output.references)


def _empty(output: PairOutput, tokenizer: str) -> float:
    del tokenizer
    pairs = list(zip(output.sources, output.hypotheses, strict=True))
    return sum(bool(source.strip()) and not text.strip() for source, text in pairs) / len(pairs)


_OFF_TARGET = (
    "off-target: share not in the target language, of translations and, as the error of the"
    " classifier, of references"
)
COLUMNS = (
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
        measure=_length_ratio,
    ),
    Column(
        "brevity",
        "brevity_penalty",
        "brevity: BLEU's penalty of short translations",
        digits=2,
        measure=_brevity_penalty,
        hidden_at=1,
    ),
    Column(
        "empty %",
        "empty",
        "empty: share of sources with an empty translation",
        factor=100,
        measure=_empty,
        hidden_at=0,
    ),
    Column(
        "cut %",
        "cut",
        "cut: share of sources of which a part was not read, and of translations that ended at the"
        " longest length",
        factor=100,
        hidden_at=0,
    ),
    Column("off-target %", "off_target", _OFF_TARGET, factor=100),
    Column("of refs %", "references_off_target", factor=100),
    Column(
        "left out %",
        "left_out",
        "left out: share of the training text, in target tokens, in lines longer than a row",
        factor=100,
        hidden_at=0,
    ),
)


def measured(output: PairOutput, tokenizer: str) -> dict[str, float]:
    """Key of each measured column -> the value of a pair; arguments as of `Column.value`."""
    values = {column.key: column.value(output, tokenizer) for column in COLUMNS}
    return {key: value for key, value in values.items() if value is not None}


def shown(measures: Sequence[Mapping[str, float]]) -> list[Column]:
    """The columns of a table.

    The two rates off target are shown together, if one of them is above 0 for a pair.

    Args:
        measures: those of each pair.
    """
    off = "off_target", "references_off_target"
    is_off = any(one.get(key) for one in measures for key in off)
    return [
        column
        for column in COLUMNS
        if column.is_shown([one.get(column.key) for one in measures])
        and (column.key not in off or is_off)
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
        f"than about words: see decoding.length_penalty in docs/decoding.md."
    ]
