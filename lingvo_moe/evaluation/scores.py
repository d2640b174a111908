"""BLEU and chrF++ of one language pair, and the significance of its ΔBLEU.

BLEU and chrF++ are those of sacreBLEU (Post 2018, "A Call for Clarity in Reporting BLEU Scores"),
with its signatures. The p-value is that of `sacrebleu --paired-bs`, a paired bootstrap test (Koehn
2004, "Statistical Significance Tests for Machine Translation Evaluation"). Its seed is 12345, or
the value of the environment variable SACREBLEU_SEED.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sacrebleu.metrics import CHRF
from sacrebleu.significance import PairedTest

from lingvo_moe.config.fields import NonNegativeFloat, NonNegativeInt, Params, Share
from lingvo_moe.evaluation import tokenizers

# Scores and p-values of fewer test lines are unreliable. Such pairs are marked.
RELIABLE_TEST_EXAMPLES = 30

BOOTSTRAP_SAMPLES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairOutput:
    """A system's translations of one language pair's test set, as three parallel lists.

    Line ends within a text are replaced by spaces, and trailing space is removed, so that the
    scores equal those of files with one text per line. Raises ValueError: if the lists are empty or
    differ in length.
    """

    pair: str  # 'SOURCE-TARGET', such as 'sw-en'
    # sentence pairs of this language pair that the model was trained on; None if they are not known
    train_examples: int | None
    sources: Sequence[str]  # the sentences to translate
    hypotheses: Sequence[str]  # the system's translations
    references: Sequence[str]  # the human translations
    # what was measured of this pair besides the texts, by `report_columns.Column.key`, such as
    # source_use (nats a target token) or off_target (a share)
    measures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # the target of the most similar training sentence for each source; None if they were not
    # searched
    nearest: Sequence[str] | None = None
    # name of the model that translated this pair; None if it is that of all pairs
    model: str | None = None

    def __post_init__(self):
        for name in ("sources", "hypotheses", "references", "nearest"):
            if (texts := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(map(file_line, texts)))
        lengths = (len(self.sources), len(self.hypotheses), len(self.references))
        if len(set(lengths)) > 1:
            raise ValueError(
                f"{self.pair}: {lengths[0]} sources, {lengths[1]} hypotheses and {lengths[2]}"
                " references. There must be one of each for every test line."
            )
        if not self.references:
            raise ValueError(f"{self.pair}: no test lines. Leave pairs without test text out.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairScore(Params):
    """The scores of one language pair.

    Attributes:
        pair: 'SOURCE-TARGET'.
        train_examples: number of sentence pairs trained on, which may need more than 32 bits; None
            as in PairOutput.
        test_examples: lines scored.
        bleu: corpus BLEU, 0 to 100.
        chrf: corpus chrF++ (character 6-grams and word bigrams), 0 to 100.
        signature: sacreBLEU's, of `bleu` and `baseline_bleu`.
        chrf_signature: sacreBLEU's, of `chrf`.
        baseline_bleu: BLEU of the baseline on the same references; None without a baseline.
        p_value: probability of a difference this large by chance; None without a baseline, for a
            single line, and if both systems have BLEU 0.
        model: as of PairOutput.
        measures: what else was measured, by `report_columns.Column.key` or by the column of a
            Metric.
    """

    pair: str
    train_examples: NonNegativeFloat | int | None  # an int stays one, also above 32 bits
    test_examples: NonNegativeInt
    bleu: NonNegativeFloat
    chrf: NonNegativeFloat
    signature: str
    chrf_signature: str
    baseline_bleu: NonNegativeFloat | None = None
    p_value: Share | None = None
    model: str | None = None
    measures: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def delta_bleu(self) -> float | None:
        """BLEU - BLEU of the baseline; None without a baseline."""
        return None if self.baseline_bleu is None else self.bleu - self.baseline_bleu

    @property
    def zero_shot(self) -> bool:
        """Whether the model was not trained on the pair."""
        return self.train_examples == 0

    @property
    def reliable(self) -> bool:
        """Whether there are enough test lines for a score of this pair alone."""
        return self.test_examples >= RELIABLE_TEST_EXAMPLES

    @property
    def significant(self) -> bool:
        """Whether the difference from the baseline is unlikely (p < 0.05) to be chance."""
        return self.reliable and self.p_value is not None and self.p_value < 0.05


def score_pair(
    output: PairOutput,
    baseline_hypotheses: Sequence[str] | None = None,
    *,
    tokenizer: str | None = None,
    bootstrap_samples: int = BOOTSTRAP_SAMPLES,
) -> PairScore:
    """Scores one pair, against a baseline if there is one.

    Args:
        output: the system's translations, with their references.
        baseline_hypotheses: another system's translations of the same sources, as many.
        tokenizer: sacreBLEU's name of a tokenizer for BLEU; None for the target's own.
        bootstrap_samples: resamples of the test set for the p-value.

    Raises ValueError: if sacreBLEU has no such tokenizer.
    """
    tokenizer = tokenizer or tokenizers.choose([output.pair])[output.pair]
    bleu = tokenizers.bleu(tokenizer)
    chrf = CHRF(word_order=2)
    score = bleu.corpus_score(output.hypotheses, [output.references]).score
    baseline, p_value = None, None
    if baseline_hypotheses is not None:
        theirs = tuple(map(file_line, baseline_hypotheses))
        baseline = bleu.corpus_score(theirs, [output.references]).score
        if len(output.references) > 1 and (score or baseline):
            p_value = _p_value(output, theirs, tokenizer, bootstrap_samples)
    return PairScore(
        pair=output.pair,
        train_examples=output.train_examples,
        test_examples=len(output.references),
        bleu=score,
        chrf=chrf.corpus_score(output.hypotheses, [output.references]).score,
        signature=bleu.get_signature().format(),
        chrf_signature=chrf.get_signature().format(),
        baseline_bleu=baseline,
        p_value=p_value,
        model=output.model,
    )


def file_line(text: str) -> str:
    """The text as one line of a file."""
    # sacreBLEU's command ends a line at a lone carriage return, and readers of text files reject
    # NUL and drop a byte order mark at the beginning.
    return re.sub("\r\n|[\r\n\0]", " ", text).removeprefix("\ufeff").rstrip()


def _p_value(
    output: PairOutput, baseline_hypotheses: Sequence[str], tokenizer: str, samples: int
) -> float:
    test = PairedTest(
        [("baseline", baseline_hypotheses), ("system", output.hypotheses)],
        {"BLEU": tokenizers.bleu(tokenizer)},
        [output.references],
        test_type="bs",
        n_samples=samples,
    )
    results: Any = test()[1]
    baseline, system = results["BLEU"]
    # A difference of 0 or more has probability 1; sacreBLEU counts only larger differences.
    return 1.0 if math.isclose(system.score, baseline.score) else system.p_value
