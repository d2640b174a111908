"""Functions from a router's logits to scores.  G groups, S tokens per group, E experts."""

import abc
import dataclasses

import tensorflow as tf

from lingvo_moe.config.fields import Params

# Avoids a division by 0 if all scores are 0; too small to change the sum of a softmax.
TINY = 1e-20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores(Params, abc.ABC):
    """Scores of experts, from which choices and weights are computed."""

    @abc.abstractmethod
    def __call__(self, logits: tf.Tensor) -> tf.Tensor:
        """float32 [G, S, E] in [0, 1], rising with the logit."""

    @abc.abstractmethod
    def gates(self, scores: tf.Tensor) -> tf.Tensor:
        """The scores of a token divided by their sum, for balance losses."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Softmax(Scores):
    """Softmax over experts: the scores of a token sum to 1."""

    def __call__(self, logits):
        return tf.nn.softmax(logits)

    def gates(self, scores):
        """As in Scores."""
        return scores


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sigmoid(Scores):
    """Sigmoid of each logit (DeepSeek-V3, arXiv 2412.19437, equation 15)."""

    def __call__(self, logits):
        return tf.sigmoid(logits)

    def gates(self, scores):
        """As in Scores."""
        return scores / (tf.reduce_sum(scores, axis=-1, keepdims=True) + TINY)
