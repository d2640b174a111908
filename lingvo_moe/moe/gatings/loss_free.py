"""Balance without a loss, by a bias for each expert that depends on its load.  E experts."""

import dataclasses

import tensorflow as tf

from lingvo_moe.config.fields import Params, PositiveFloat
from lingvo_moe.nn.layer import Constant
from lingvo_moe.nn.tables import StateSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossFree(Params):
    """Experts are chosen by score + bias and weighted by the score alone.

    Wang et al. 2024 (arXiv 2408.15664), Algorithm 1. After each step the bias of an expert with
    less than the mean load rises by `rate`, that of one with more falls by it. The load is of all
    choices of the whole batch, before capacity. The bias has no gradient; it is saved, exported and
    used in decoding like a weight. Set balance.weight to 0, or use
    BySequence.

    Attributes:
        rate: u; the paper uses 0.001 with sigmoid scores.
    """

    rate: PositiveFloat = 0.001

    def spec(self, num_experts: int) -> "LoadBias":
        """The spec of the bias, which is initially 0."""
        return LoadBias((num_experts,), Constant(0.0), "e", rate=self.rate)


@dataclasses.dataclass(frozen=True)
class LoadBias(StateSpec):
    """The bias [E], or [Y, E] of the layers of a scan.

    Attributes:
        rate: u.
    """

    rate: float = 0.0

    def after_step(self, value, choices):
        load = choices[..., : value.shape[-1]]
        mean = tf.reduce_mean(load, axis=-1, keepdims=True)
        return value + self.rate * tf.sign(mean - load)
