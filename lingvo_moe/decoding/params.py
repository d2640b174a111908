"""The params of a search, for a model or for one request."""

import dataclasses
import math
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any

import tensorflow as tf

from lingvo_moe.config.fields import (
    FROM_DATA,
    FromData,
    NonNegativeInt,
    Params,
    PositiveInt,
    Rule,
)
from lingvo_moe.config.params import evolve_all
from lingvo_moe.decoding.fitted import UNFITTED, Fitted
from lingvo_moe.decoding.sampling import Sampling

MAX_BEAM = 64  # wider beams find no better translations (Koehn and Knowles 2017) and fill memory
_ROUNDING = 1e-6  # more than the relative error of a product in float32
# The smallest and the largest value of numbers. Without the largest ones the number of steps could
# be too large for int32 or for memory, and scores too large for float32.
RANGES = {
    "beam_size": (1, MAX_BEAM),
    "n_best": (1, MAX_BEAM),
    "length_penalty": (0, 10),
    "length_ratio": (0, 100),
    "expected_ratio": (0, 100),
    "length_offset": (1, 100_000),
    "repetition_penalty": (0, 1000),
}


def _in_range(name: str) -> Rule:
    least, most = RANGES[name]
    return Rule(f"{least} to {most}", lambda number: least <= number <= most)


def _is_line(text: str) -> bool:
    """Whether a text has no control characters and no halves of surrogate pairs."""
    return not any(unicodedata.category(c) in ("Cc", "Cs") for c in text)


_Line = Annotated[str, Rule("one line without control characters", _is_line)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSearchParams(Params):
    """The params of a search.

    Attributes:
        beam_size: K, 1 to MAX_BEAM. With a shared cache, memory grows with its square.
        n_best: N, number of translations to return, 1 to MAX_BEAM.
        length_penalty: α of score = log P / ((5 + length)/6)^α (Wu et al. 2016, equation 14); the
            length counts EOS. FROM_DATA is what Fitted has for the target language.
        length_ratio, length_offset: a translation has at most ratio · source length + offset
            tokens, with EOS; it ends there in any case. A ratio FROM_DATA is as above.
        expected_ratio: length_penalty counts at most ratio · source length tokens, so that a
            translation gains nothing by more (Yang et al. 2018, arXiv 1808.09582, the bounded
            reward); 0 counts all. FROM_DATA is as above.
        min_length: smallest number of tokens, with EOS; limited by the largest length. Both count
            the tag with which translations of models with `OnBothSides()` begin.
        no_repeat_ngram: n; no sequence of n tokens occurs twice in a translation. 0 for no limit.
        repetition_penalty: nats that log P of a token loses in a search if the translation has the
            token already; the score loses them too. Unlike a factor of logits (Keskar et al. 2019,
            arXiv 1909.05858, section 4.1) it does not depend on a constant added to all logits.
        source_prefix: text put in front of every source, exactly as given.
        target_prefix: text that every translation begins with. Its tokens are forced. They count in
            the score and the length, and other constraints do not apply to them.
        tokens: whether to return the tokens of translations, each with its log P and its aligned
            source token; see `Transformer.step`.
        batch_tokens: number of source tokens that are decoded together, with padding; a longer
            sentence is decoded alone. It does not change translations.
        separate_caches_from: beams of at least so many hypotheses have a cache for each, smaller
            ones share one (see decoding/cache.py). It does not change translations; the default is
            measured on a CPU.
        sampling: draws beam_size independent translations of each sentence and returns the N with
            the best scores; None to search.

    Raises ValueError: a value breaks a rule.
    """

    beam_size: Annotated[int, _in_range("beam_size")] = 4
    n_best: Annotated[int, _in_range("n_best")] = 1
    length_penalty: Annotated[float, _in_range("length_penalty")] | FromData = FROM_DATA
    length_ratio: Annotated[float, _in_range("length_ratio")] | FromData = FROM_DATA
    length_offset: Annotated[int, _in_range("length_offset")] = 10  # leaves room for EOS
    expected_ratio: Annotated[float, _in_range("expected_ratio")] | FromData = FROM_DATA
    min_length: NonNegativeInt = 0
    no_repeat_ngram: NonNegativeInt = 0
    repetition_penalty: Annotated[float, _in_range("repetition_penalty")] = 0.0
    source_prefix: _Line = ""
    target_prefix: _Line = ""
    tokens: bool = False
    batch_tokens: PositiveInt = 2048
    separate_caches_from: PositiveInt = 32
    sampling: Sampling | None = None

    def filled(self, fitted: Fitted = UNFITTED, language: str | None = None) -> "BeamSearchParams":
        """The same with the numbers of a target language, or of all, for fields FROM_DATA."""
        numbers = fitted.numbers(language)
        missing = {n: value for n, value in numbers.items() if getattr(self, n) is FROM_DATA}
        return dataclasses.replace(self, **missing) if missing else self

    def longest(self, source_tokens: Any) -> Any:
        """Largest number of tokens, with EOS, of a translation of so many source tokens, a number
        or int32 of any shape. Fields FROM_DATA are those of UNFITTED. Rounding errors do not count:
        0.6 · 25 is 15, in float32 too."""
        ratio = self._number("length_ratio")
        if isinstance(source_tokens, int):
            exact = ratio * source_tokens
            return math.ceil(exact - _ROUNDING * max(exact, 1.0)) + self.length_offset
        exact = ratio * tf.cast(source_tokens, tf.float32)
        rounded = tf.math.ceil(exact - _ROUNDING * tf.maximum(exact, 1.0))
        return tf.cast(rounded, tf.int32) + self.length_offset

    def rewarded(self, source_tokens: Any) -> Any:
        """Largest number of tokens, with EOS, that length_penalty counts in a translation of so
        many source tokens, a number or int32 of any shape: a float, infinite for all."""
        ratio = self._number("expected_ratio")
        if isinstance(source_tokens, int):
            return ratio * source_tokens or math.inf
        exact = ratio * tf.cast(source_tokens, tf.float32)
        return tf.where(exact > 0.0, exact, math.inf)

    def penalty(self, length: Any, exponent: float | None = None) -> Any:
        """The divisor of log P for a number of tokens with EOS, a float or a tensor; exponent is α,
        None for length_penalty."""
        return ((5.0 + length) / 6.0) ** (
            self._number("length_penalty") if exponent is None else exponent
        )

    def _number(self, name):
        value = getattr(self, name)
        return UNFITTED.numbers()[name] if value is FROM_DATA else value

    def with_options(self, options: Mapping[str, Any]) -> "BeamSearchParams":
        """The params with other values of some fields; only all of them together must be valid. As
        in JSON, a tuple may be a list, and `sampling` some fields of a Sampling by name; the others
        keep their values. Raises ValueError: there is no such field, or a value is of the wrong
        type or breaks a rule."""

        values = dict(options)
        for name, value in values.items():
            if name == "sampling" and isinstance(value, Mapping):
                values[name] = evolve_all(self.sampling or Sampling(), value)
            elif isinstance(value, list):
                values[name] = tuple(value)
        return evolve_all(self, values)
