"""Sampling of translations.  B sentences, K samples of each, V vocabulary."""

import dataclasses
import math
from typing import Annotated

import tensorflow as tf

from lingvo_moe.config.fields import NonNegativeInt, Params, PositiveFloat, Rule, Share
from lingvo_moe.nn import random
from lingvo_moe.nn.smart_cond import smart_cond

_Mass = Annotated[float, Rule("in (0, 1]", lambda p: 0 < p <= 1)]
_LEAST_TEMPERATURE = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(Params):
    """Draws the next token at random.

    The random numbers of a sentence depend on its source alone, so a translation does not depend
    on the other sentences of its batch. The same sentence and seed give the same samples.

    Attributes:
        temperature: logits are divided by it. Below 1e-6 it counts as 1e-6, so that quotients stay
            finite; the likeliest token is drawn then.
        top_k: number of best tokens to draw from; 0 for all.
        top_p: draws only from the smallest set of best tokens with at least this total probability
            (Holtzman et al. 2020, arXiv 1904.09751); 1 for all.
        min_p: draws only tokens with at least this share of the best one's probability, measured
            with the temperature (Nguyen et al. 2024, arXiv 2407.01082); 0 for all.
        seed: of the random numbers.
    """

    temperature: PositiveFloat = 1.0
    top_k: NonNegativeInt = 0
    top_p: _Mass = 1.0
    min_p: Share = 0.0
    seed: int = 0

    def draw(self, logits: tf.Tensor, step: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Draws int32 [B, K], a token for each sample, by logits float32 [B, K, V], -inf for tokens
        that must not be drawn. Each draw has another `step`, int32 []; `keys`, int32 [B], are the
        hashes of the sentences."""
        logits /= tf.maximum(self.temperature, _LEAST_TEMPERATURE)
        seed = random.fold_in(tf.stack([self.seed, 0]), step)
        # Each sentence has its own noise; else a word with much of it would be drawn in all.
        own = random.mix(tf.cast(keys, tf.uint32))[:, None, None]
        words = random.mix(random.words(tf.shape(logits)[1:], seed) ^ own)
        # The token with the largest logit plus Gumbel noise is a sample of the softmax.
        noise = random.gumbel(words)
        some = (self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)
        return smart_cond(
            some,
            lambda: self._of_likeliest(logits, noise),
            lambda: tf.argmax(logits + noise, -1, tf.int32),
        )

    def _of_likeliest(self, logits, noise):
        """Draws a token that is kept, by rank; of equal ones the lowest is taken."""
        size = logits.shape[-1]
        count = tf.where(self.top_k > 0, tf.minimum(self.top_k, size), size)
        # XLA needs a static number; fewer are sorted faster.
        sorts = size if logits.shape.is_fully_defined() else count
        best, kept = tf.math.top_k(logits, sorts), tf.range(sorts) < count
        share = tf.nn.softmax(tf.where(kept, best.values, -math.inf))
        kept &= (tf.cumsum(share, axis=-1, exclusive=True) < self.top_p) | (self.top_p >= 1)
        kept &= best.values - best.values[..., :1] >= tf.math.log(self.min_p)
        noise = tf.gather(noise, best.indices, batch_dims=2)
        place = tf.argmax(tf.where(kept, best.values + noise, -math.inf), -1, tf.int32)
        return tf.gather(best.indices, place, batch_dims=2)
