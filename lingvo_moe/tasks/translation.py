"""Multilingual translation.

B rows, L source length, T target length, V vocabulary, P language pairs, E experts.
"""

import dataclasses

import tensorflow as tf

from lingvo_moe.core.layer import Context
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.data.pipeline import InputParams
from lingvo_moe.decoding.flat_beam_search import BeamOutput, BeamSearchParams, beam_search
from lingvo_moe.layers.loss import smoothed_cross_entropy
from lingvo_moe.layers.transformer import Transformer, TransformerParams
from lingvo_moe.train.adafactor import Adafactor
from lingvo_moe.train.loop import TrainParams
from lingvo_moe.train.optimizer import Optimizer
from lingvo_moe.train.step import LossOutput


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationParams:
    """All that a registered model says.

    Attributes:
        model: the shape of the network.
        source_vocab_size, target_vocab_size: rows of the embedding tables; a dataset's vocabularies
            may be smaller, never larger.
        input: batches and the sampling of pairs.
        optimizer: how weights move.
        train: how long and how watched.
        decoding: beam search.
        label_smoothing: ε of the training loss.
        activation_dtype: "float32" or "bfloat16"; weights and losses are float32 either way.
    """

    model: TransformerParams
    source_vocab_size: int
    target_vocab_size: int
    input: InputParams = InputParams()
    optimizer: Optimizer = Adafactor()
    train: TrainParams = TrainParams()
    decoding: BeamSearchParams = BeamSearchParams()
    label_smoothing: float = 0.1
    activation_dtype: str = "float32"

    def __post_init__(self):
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}.")
        if self.activation_dtype not in ("float32", "bfloat16"):
            raise ValueError(
                f"activation_dtype must be 'float32' or 'bfloat16', got {self.activation_dtype!r}."
            )


@dataclasses.dataclass(frozen=True)
class TranslationTask:
    """Ties a Transformer to its data.

    Attributes:
        params: the model's params.
        num_pairs: P, how many language pairs the dataset has; per-pair metrics have this size.
        num_pieces: pieces of the dataset's target vocabulary, at most target_vocab_size; None for
            as many.
    """

    params: TranslationParams
    num_pairs: int = 1
    num_pieces: int | None = None

    @property
    def transformer(self) -> Transformer:
        """The network."""
        p = self.params
        return Transformer(
            params=p.model,
            source_vocab_size=p.source_vocab_size,
            target_vocab_size=p.target_vocab_size,
        )

    def weights(self) -> NestedMap:
        """The tree of WeightSpecs."""
        return self.transformer.weights()

    def num_targets(self, batch: NestedMap) -> tf.Tensor:
        """float32 []: real target tokens of the batch."""
        return tf.reduce_sum(tf.cast(batch.target_segment_ids != 0, tf.float32))

    def loss(
        self, theta: NestedMap, batch: NestedMap, denominator: tf.Tensor, context: Context
    ) -> LossOutput:
        """Label-smoothed cross-entropy plus the weighted losses of the MoE layers.

        Args:
            theta: the weights.
            batch: int32 tensors: source_ids, source_segment_ids [B, L]; target_inputs, target_ids,
                target_segment_ids, pair_ids [B, T].
            denominator: float32 [], real target tokens of the whole batch.
            context: mode and randomness.

        Returns:
            The objective and the metrics, sums over this batch: `nll` and `tokens` (nats, count),
            `pair_nll` and `pair_tokens` [P], and, for MoE models, all weighted by tokens: the
            unweighted `aux_loss` and `z_loss`, averaged over layers; a row a layer, `drop_rate`,
            `entropy`, `unused` and `num_experts` [layers], `load` and `importance` [layers, E],
            with zeros at the end of a layer of fewer experts.
        """
        output = self.transformer.fprop(
            self._to_compute_dtype(theta),
            batch.source_ids,
            batch.source_segment_ids,
            batch.target_inputs,
            batch.target_segment_ids,
            context,
        )
        flat = tf.reshape(output.outputs, [-1, self.params.target_vocab_size])
        smoothed, nll = smoothed_cross_entropy(
            flat, tf.reshape(batch.target_ids, [-1]), self.params.label_smoothing
        )
        real = tf.cast(tf.reshape(batch.target_segment_ids, [-1]) != 0, tf.float32)
        tokens = tf.reduce_sum(real)
        objective = tf.reduce_sum(smoothed * real) / denominator
        pairs = tf.reshape(batch.pair_ids, [-1])
        metrics = NestedMap(
            nll=tf.reduce_sum(nll * real),
            tokens=tokens,
            pair_nll=tf.math.unsorted_segment_sum(nll * real, pairs, self.num_pairs),
            pair_tokens=tf.math.unsorted_segment_sum(real, pairs, self.num_pairs),
        )
        moe = self.params.model.moe
        if moe is not None:
            share = tokens / denominator
            objective += output.moe_loss * share
            metrics.update(_moe_metrics(output, tokens))
        return LossOutput(objective, metrics)

    def translate(self, theta: NestedMap, source_ids: tf.Tensor, lengths: tf.Tensor) -> BeamOutput:
        """Translates a batch.

        Args:
            theta: the weights.
            source_ids: int32 [B, L], language tag first, EOS last.
            lengths: int32 [B], real tokens of each row.

        Returns:
            The n best hypotheses of each sentence.

        Raises:
            ValueError: the gating is not batch independent.
        """
        moe = self.params.model.moe
        if moe is not None and not moe.gating.batch_independent:
            raise ValueError(
                f"Decoding needs a batch-independent gating, got {moe.gating}: a translation would "
                f"depend on its batch. Train a model with another model.moe.gating, such as Top2()."
            )
        return beam_search(
            self.transformer,
            self._to_compute_dtype(theta),
            source_ids,
            lengths,
            self.params.decoding,
            self.num_pieces,
        )

    def _to_compute_dtype(self, theta):
        return theta.map(lambda w: tf.cast(w, self.params.activation_dtype))


def _moe_metrics(output, tokens):
    layers = [
        stats for _, side in sorted(output.stats.items()) for _, stats in sorted(side.items())
    ]
    experts = [stats.load.shape[0] for stats in layers]

    def rows(name):
        return tf.stack([stats[name] for stats in layers])

    def padded_rows(name):
        widest = max(experts)
        return tf.stack(
            [tf.pad(s[name], [[0, widest - e]]) for s, e in zip(layers, experts, strict=True)]
        )

    metrics = NestedMap(
        aux_loss=tf.reduce_mean(rows("aux_loss")),
        z_loss=tf.reduce_mean(rows("z_loss")),
        drop_rate=rows("drop_rate"),
        entropy=rows("entropy"),
        unused=rows("unused"),
        num_experts=tf.constant(experts, tf.float32),
        load=padded_rows("load"),
        importance=padded_rows("importance"),
    )
    return metrics.map(lambda value: value * tokens)
