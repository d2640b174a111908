"""Token embeddings and the softmax.  B batch, T length, V vocabulary, M model."""

import dataclasses
import math

import tensorflow as tf

from lingvo_moe.config.fields import PositiveInt
from lingvo_moe.layers.loss import smoothed_cross_entropy
from lingvo_moe.nn.layer import Layer, Normal, WeightSpec
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.sbp import copies

LOGITS_MULTIPLE = 64  # decoding searches the best logits in chunks of this size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedding(Layer):
    """One table for the embedding and, tied, the softmax's logits (Press and Wolf 2017).

    Attributes:
        vocab_size: V.
        model_dim: M.
        scaled: whether vectors are multiplied by √M, or else the logits by 1/√M.
    """

    vocab_size: PositiveInt
    model_dim: PositiveInt
    scaled: bool = False

    def weights(self):
        """Theta: table [V, M], normal(1), or normal(M^-1/2) if scaled."""
        shape = (self.vocab_size, self.model_dim)
        stddev = self.model_dim**-0.5 if self.scaled else 1.0
        return NestedMap(table=WeightSpec(shape, Normal(stddev), "VM"))

    def lookup(self, theta: NestedMap, ids: tf.Tensor) -> tf.Tensor:
        """The vectors [..., M] of ids int32 [...]."""
        vectors = copies.lookup(theta.table, ids)
        return vectors * tf.cast(self.model_dim**0.5, vectors.dtype) if self.scaled else vectors

    def logits(self, theta: NestedMap, hidden: tf.Tensor) -> tf.Tensor:
        """float32 scores [B, T, V] of hidden [B, T, M]."""
        scores = tf.einsum("BTM,VM->BTV", self._scaled(hidden), theta.table)
        return tf.cast(scores, tf.float32)

    def lay_out(self, theta: NestedMap, num_pieces: int | None = None) -> NestedMap:
        """The softmax's weights for decoding, so that logits need only one product.

        Args:
            theta: as `weights`.
            num_pieces: rows of the table in use; None for all.

        Returns:
            weight [M, W], scaled, and bias [W]: W is num_pieces rounded up to a multiple of
            `LOGITS_MULTIPLE`; the logits of the additional columns are -inf.
        """
        used = self.vocab_size if num_pieces is None else num_pieces
        extra = -used % LOGITS_MULTIPLE
        weight = tf.pad(tf.transpose(self._scaled(theta.table[:used])), [[0, 0], [0, extra]])
        bias = tf.constant([0.0] * used + [-math.inf] * extra, weight.dtype)
        return NestedMap(weight=weight, bias=bias)

    def step_logits(self, laid_out: NestedMap, hidden: tf.Tensor) -> tf.Tensor:
        """float32 scores [R, W] of hidden [R, M], with weights of `lay_out`."""
        scores = tf.nn.bias_add(tf.matmul(hidden, laid_out.weight), laid_out.bias)
        return tf.cast(scores, tf.float32)

    def loss(
        self, theta: NestedMap, hidden: tf.Tensor, labels: tf.Tensor, smoothing: float
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """`smoothed_cross_entropy` of these logits and labels int32 [B, T], without the logits."""
        return smoothed_cross_entropy(self._scaled(hidden), theta.table, labels, smoothing)

    def _scaled(self, hidden):
        return hidden if self.scaled else hidden * tf.cast(self.model_dim**-0.5, hidden.dtype)
