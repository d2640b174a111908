"""sacreBLEU and chrF++ of one language pair, and whether the gain over a baseline is real.

BLEU and chrF++ are those of sacreBLEU (Post 2018, "A Call for Clarity in Reporting BLEU Scores"),
signatures included. The p-value is of sacreBLEU's paired bootstrap test (Koehn 2004, "Statistical
Significance Tests for Machine Translation Evaluation"): what `sacrebleu --paired-bs` prints. Its
seed is sacreBLEU's own, 12345 unless the environment variable SACREBLEU_SEED says otherwise.
"""

import dataclasses
import math
from collections.abc import Sequence

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

# Scores of fewer test lines than this say little about one pair, its p-value included: they are
# reported, marked, and scored once more pooled with the other small pairs.
RELIABLE_TEST_EXAMPLES = 30

BOOTSTRAP_SAMPLES = 1000

# Scripts that put no space between words, for which 13a would take a sentence for a word.
# sacreBLEU's own choice for Japanese needs a package of its own; characters need none.
_TOKENIZERS = {"zh": "zh", "yue": "zh"} | dict.fromkeys(("ja", "th", "lo", "km", "my"), "char")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairOutput:
    """What a system made of one language pair's test set. The three lists run in parallel.

    A line break inside a text becomes a space and trailing space goes, so that the scores of
    the texts are the scores of files that hold one of them a line.

    Attributes:
        pair: 'SOURCE-TARGET', as 'sw-en'.
        train_examples: sentence pairs of this language pair that the model was trained on.
        sources: the sentences to translate.
        hypotheses: the system's translations.
        references: the human translations.

    Raises:
        ValueError: if the lists are empty or differ in length, or `pair` is no pair.
    """

    pair: str
    train_examples: int
    sources: Sequence[str]
    hypotheses: Sequence[str]
    references: Sequence[str]

    def __post_init__(self):
        source, _, target = self.pair.rpartition("-")
        if not source or not target or "/" in self.pair:
            raise ValueError(f"pair must be 'SOURCE-TARGET', as 'sw-en', got {self.pair!r}.")
        for name in ("sources", "hypotheses", "references"):
            object.__setattr__(self, name, tuple(map(_one_line, getattr(self, name))))
        lengths = (len(self.sources), len(self.hypotheses), len(self.references))
        if len(set(lengths)) > 1:
            raise ValueError(
                f"{self.pair}: {lengths[0]} sources, {lengths[1]} hypotheses and {lengths[2]}"
                " references. There must be one of each for every test line."
            )
        if not self.references:
            raise ValueError(f"{self.pair}: no test lines. Leave pairs without test text out.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairScore:
    """The scores of one language pair.

    Attributes:
        pair: 'SOURCE-TARGET'; '*-TARGET' for pairs scored as one.
        train_examples: sentence pairs trained on.
        test_examples: lines scored.
        bleu: corpus BLEU, 0 to 100.
        chrf: corpus chrF++ (character 6-grams and word bigrams), 0 to 100.
        signature: sacreBLEU's, of `bleu` and `baseline_bleu`.
        chrf_signature: sacreBLEU's, of `chrf`.
        baseline_bleu: BLEU of the baseline on the same references; None without a baseline.
        p_value: how likely chance alone makes so large a difference; None without a baseline or
            without its hypotheses.
    """

    pair: str
    train_examples: int
    test_examples: int
    bleu: float
    chrf: float
    signature: str
    chrf_signature: str
    baseline_bleu: float | None = None
    p_value: float | None = None

    @property
    def delta_bleu(self) -> float | None:
        """BLEU - BLEU of the baseline; None without a baseline."""
        return None if self.baseline_bleu is None else self.bleu - self.baseline_bleu

    @property
    def reliable(self) -> bool:
        """Whether there are enough test lines for a score of this pair alone."""
        return self.test_examples >= RELIABLE_TEST_EXAMPLES

    @property
    def significant(self) -> bool:
        """Whether the difference from the baseline is unlikely (p < 0.05) to be chance."""
        return self.reliable and self.p_value is not None and self.p_value < 0.05


def default_tokenizer(pair: str) -> str:
    """The sacreBLEU tokenizer for a pair's target: '13a' but for scripts without spaces."""
    language = pair.rpartition("-")[2].split("_")[0]
    return _TOKENIZERS.get(language, "13a")


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
        baseline_hypotheses: another system's translations of the same sources.
        tokenizer: sacreBLEU's name of a tokenizer for BLEU; None for `default_tokenizer`.
        bootstrap_samples: resamples of the test set for the p-value.

    Raises:
        ValueError: if sacreBLEU has no such tokenizer, or the baseline's lines are not as many.
    """
    tokenizer = tokenizer or default_tokenizer(output.pair)
    bleu = _bleu(tokenizer)
    chrf = CHRF(word_order=2)
    score = bleu.corpus_score(output.hypotheses, [output.references]).score
    result = PairScore(
        pair=output.pair,
        train_examples=output.train_examples,
        test_examples=len(output.references),
        bleu=score,
        chrf=chrf.corpus_score(output.hypotheses, [output.references]).score,
        signature=bleu.get_signature().format(),
        chrf_signature=chrf.get_signature().format(),
    )
    if baseline_hypotheses is None:
        return result
    if len(baseline_hypotheses) != len(output.references):
        raise ValueError(
            f"{output.pair}: {len(baseline_hypotheses)} lines of the baseline for"
            f" {len(output.references)} references. Both systems must translate the same lines."
        )
    baseline_hypotheses = tuple(map(_one_line, baseline_hypotheses))
    baseline_score = bleu.corpus_score(baseline_hypotheses, [output.references]).score
    return dataclasses.replace(
        result,
        baseline_bleu=baseline_score,
        p_value=1.0
        # Without any difference the test has nothing to test; sacreBLEU would call that certain.
        if math.isclose(score, baseline_score)
        else _p_value(output, baseline_hypotheses, tokenizer, bootstrap_samples),
    )


def pool(outputs: Sequence[PairOutput]) -> PairOutput:
    """Several pairs with the same target language as one, '*-TARGET', their lines in turn."""
    return PairOutput(
        pair=f"*-{outputs[0].pair.rpartition('-')[2]}",
        train_examples=sum(output.train_examples for output in outputs),
        sources=[line for output in outputs for line in output.sources],
        hypotheses=[line for output in outputs for line in output.hypotheses],
        references=[line for output in outputs for line in output.references],
    )


def _one_line(text: str) -> str:
    return " ".join(text.splitlines()).rstrip()


def _bleu(tokenizer: str) -> BLEU:
    if tokenizer not in BLEU.TOKENIZERS:
        raise ValueError(
            f"sacreBLEU has no tokenizer {tokenizer!r}. Choose one of"
            f" {', '.join(sorted(BLEU.TOKENIZERS))}."
        )
    # force: no warning at text that ends in " .", as that of small corpora does.
    return BLEU(tokenize=tokenizer, force=True)


def _p_value(
    output: PairOutput, baseline_hypotheses: Sequence[str], tokenizer: str, samples: int
) -> float:
    test = PairedTest(
        [("baseline", baseline_hypotheses), ("system", output.hypotheses)],
        {"BLEU": _bleu(tokenizer)},
        [output.references],
        test_type="bs",
        n_samples=samples,
    )
    _, results = test()
    _, system = results["BLEU"]
    return system.p_value
