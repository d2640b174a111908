"""Multilingual translation.

B rows, L source length, T target length, V vocabulary, P language pairs, E experts.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingvo_moe.data.language_tags import LanguageTags
from lingvo_moe.decoding.flat_beam_search import BeamOutput, beam_search
from lingvo_moe.decoding.request import Request
from lingvo_moe.flexmoe.vexperts import VExperts
from lingvo_moe.layers.transformer import Transformer
from lingvo_moe.moe.router import ByTask
from lingvo_moe.nn.layer import EVALUATION, Context
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.special_tokens import BOS
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.sbp import copies
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.routing_metrics import (
    choices_of,
    max_vio,
    needed_rung,
    routing_metrics,
    unused_experts,
)
from lingvo_moe.training.step import LossOutput, TrainStep


@dataclasses.dataclass(frozen=True)
class TranslationTask:
    """A Transformer with its data: loss, decoding, scoring. Raises ValueError: VExperts in a scan,
    or group_loads of a model whose tokens choose no experts."""

    params: TranslationParams  # the model's params
    # P names of the dataset's language pairs; per-pair metrics are in this order
    pairs: tuple[str, ...] = ("source-target",)
    # pieces of the dataset's target vocabulary; None for target_vocab_size
    num_pieces: int | None = None
    # whether training counts the choices of each expert in each group of tokens
    group_loads: bool = False
    # the pairs that have training text; () if unknown. See ModelDir.
    seen_pairs: tuple[str, ...] = ()

    def __post_init__(self):
        moe = self.params.model.moe
        if moe and not self.moe_layers:
            raise ValueError(
                f"model.moe.every_n={moe.every_n} leaves no layer with experts, because no side has"
                f" as many layers; lower it, or pass --set=model.moe=None."
            )
        if self.vexperts and self.params.model.scan:
            raise ValueError("Layers in a scan cannot use VExperts; pass --set=model.scan=False.")
        if self.group_loads and not (moe and moe.gating.batch_independent):
            raise ValueError(
                f"Loads can be recorded only if tokens choose experts; this model has "
                f"{f'{moe.gating}, where experts choose tokens' if moe else 'no experts'}."
            )

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

    @property
    def moe_layers(self) -> list[str]:
        """The MoE layers, such as "encoder/layer_01", in the order of the metrics' rows."""
        sides = {"encoder": self.transformer.encoder, "decoder": self.transformer.decoder}
        return [
            f"{side}/{name}"
            for side, stack in sides.items()
            for name, layer in stack.layers.items()
            if layer.is_moe
        ]

    @property
    def layer_experts(self) -> list[int]:
        """The number of experts of each of moe_layers."""
        moe = self.params.model.moe
        if moe is None:
            return []
        experts = {"encoder": moe, "decoder": moe.of_decoder()}
        return [experts[layer.split("/")[0]].num_experts for layer in self.moe_layers]

    def for_xla(self, groups: int) -> "TranslationTask":
        """The same task with static shapes in evaluation and decoding too, for XLA, in so many
        groups of tokens, split over devices. Without a capacity their number does not change
        results."""
        moe = self.params.model.moe
        return self.with_moe(evaluation=moe.evaluation.for_xla(groups)) if moe else self

    @property
    def rungs(self) -> tuple["TranslationTask", ...]:
        """This task on each rung of its dispatcher (see megablocks.laddered); () without rungs."""
        moe = self.params.model.moe
        return tuple(self.with_moe(training=one) for one in moe.training.rungs) if moe else ()

    @property
    def placements(self) -> dict[str, int]:
        """Path of each layer's placement among the weights -> number of experts of the layer, in
        the order of moe_layers; {} for a model whose experts are not VExperts."""
        specs = dict(self.weights().flatten())
        paths = [f"{layer}/feed_forward/placement" for layer in self.moe_layers]
        return {path: specs[path].num_experts for path in paths if path in specs}

    @property
    def vexperts(self) -> VExperts | None:
        """The dispatcher if it is VExperts, else None."""
        moe = self.params.model.moe
        return moe.training if moe and isinstance(moe.training, VExperts) else None

    def with_moe(self, **changes: Any) -> "TranslationTask":
        """The same task; see `TranslationParams.with_moe`."""
        return dataclasses.replace(self, params=self.params.with_moe(**changes))

    def num_targets(self, batch: NestedMap) -> tf.Tensor:
        """float32 []: real target tokens of the batch."""
        return tf.reduce_sum(tf.cast(batch.target_segment_ids != 0, tf.float32))

    def in_use(self, theta: NestedMap) -> NestedMap:
        """Weights, or some of them, as the layers use them: in activation_dtype, unless their specs
        forbid it. Those that are split further at rest than in use are gathered after the cast."""
        dtype = self.params.activation_dtype
        return theta.map(
            lambda w, spec: copies.gather_weight(tf.cast(w, dtype) if spec.cast else w, spec.dims),
            self.weights(),
        )

    def loss(
        self, theta: NestedMap, batch: NestedMap, denominator: tf.Tensor, context: Context
    ) -> LossOutput:
        """Label-smoothed cross-entropy plus the weighted losses of the MoE layers.

        Args:
            theta: the weights.
            batch: int32 tensors, see `packing.batch_of`.
            denominator: float32 [], real target tokens of the whole batch.
            context: mode and randomness.

        Returns:
            The objective and the metrics, sums over this batch: `nll` and `tokens` (nats, count),
            `pair_nll` and `pair_tokens` [P], and, for MoE models, those of `routing_metrics`.
        """
        theta, transformer = self.in_use(theta), self.transformer
        source, target = self._sides(batch)
        output = transformer.hidden(theta, source, target, context)
        losses = transformer.loss(
            theta, output.outputs, batch.target_ids, self.params.label_smoothing
        )
        smoothed, nll = (tf.reshape(loss, [-1]) for loss in losses)
        real = tf.cast(tf.reshape(batch.target_segment_ids, [-1]) != 0, tf.float32)
        tokens = tf.reduce_sum(real)
        objective = tf.reduce_sum(smoothed * real) / denominator
        pairs, num_pairs = tf.reshape(batch.target_pair_ids, [-1]), len(self.pairs)
        metrics = NestedMap(
            nll=tf.reduce_sum(nll * real),
            tokens=tokens,
            pair_nll=tf.math.unsorted_segment_sum(nll * real, pairs, num_pairs),
            pair_tokens=tf.math.unsorted_segment_sum(real, pairs, num_pairs),
        )
        if (moe := self.params.model.moe) and self.moe_layers:
            objective += output.moe_loss * tokens / denominator
            pair_ids = {"encoder": batch.source_pair_ids, "decoder": batch.target_pair_ids}
            metrics.update(
                routing_metrics(
                    output,
                    pair_ids,
                    num_pairs,
                    tokens,
                    context.training,
                    self.group_loads and context.training,
                    moe.gating.batch_independent,
                )
            )
        return LossOutput(objective, metrics, needed_rung(output))

    def after_step(self, state: NestedMap, metrics: NestedMap) -> tuple[NestedMap, NestedMap]:
        """See training.step.Trainable: the weights with a StateSpec after a step with these metrics
        of the whole batch, and the metrics with `max_vio` and `unused` [layers] for MoE models."""
        if not self.moe_layers:
            return state, metrics
        specs = dict(self.weights().flatten())
        after = {
            path: specs[path].after_step(value, choices_of(path, self.moe_layers, metrics.choices))
            for path, value in state.flatten()
        }
        of = metrics.choices, self.layer_experts
        metrics = NestedMap(metrics, max_vio=max_vio(*of), unused=unused_experts(*of))
        return NestedMap.unflatten(after), metrics

    def _sides(self, batch):
        """The Tokens of source and target."""
        tasks, start = self.task_ids, self.params.language_tags.start
        inputs = tf.where(batch.target_inputs == BOS, start, batch.target_inputs)
        return (
            Tokens(
                ids,
                batch[f"{side}_segment_ids"],
                None if tasks is None else tf.gather(tasks, batch[f"{side}_pair_ids"]),
            )
            for side, ids in (("source", batch.source_ids), ("target", inputs))
        )

    @property
    def task_ids(self) -> list[int] | None:
        """The task of each pair if the router is ByTask, else None."""
        return self.task_router.task_ids(self.pairs) if self.task_router else None

    @property
    def task_router(self) -> ByTask | None:
        """The router if it is ByTask, else None."""
        moe = self.params.model.moe
        return moe.router if moe and isinstance(moe.router, ByTask) else None

    @property
    def needs_source_language(self) -> bool:
        """Whether `translate` needs the source language; it always needs the target language."""
        by_task = self.task_router is not None and self.task_router.task != "target"
        return by_task or self.params.language_tags.needs_source_language

    @property
    def trained_pairs(self) -> tuple[str, ...]:
        """The pairs that the model is trained on, without those known to have no training text."""
        wanted = self.params.input.pairs or self.seen_pairs or self.pairs
        known = set(self.seen_pairs or wanted)
        return tuple(pair for pair in wanted if pair in known)

    @functools.cached_property
    def trained_tasks(self) -> dict[str, int]:
        """The tasks of training, by name such as "de", with their numbers; see ByTask."""
        router = self.task_router
        if router is None:
            return {}
        names, numbers = router.task_names(self.pairs), router.task_ids(self.pairs)
        trained = set(router.task_names(self.trained_pairs))
        return {n: number for n, number in zip(names, numbers, strict=True) if n in trained}

    def has_experts_for(self, pair: str) -> bool:
        """Whether ByTask was trained on the task of a pair such as "de-en"; True with another
        router."""
        router = self.task_router
        return router is None or router.task_names([pair])[0] in self.trained_tasks

    def task_id(self, source_language: str | None, target_language: str) -> int:
        """The task of sentences of one language pair; 0 if the model does not route by task. Raises
        ValueError: the router needs the source language, or the model was not trained on the task.
        """
        if not self.task_router:
            return 0
        kind, known = self.task_router.task, ", ".join(self.trained_tasks)
        if self.needs_source_language and source_language is None:
            raise ValueError(
                f"This model routes by {kind}; give source_language. It was trained on {known}."
            )
        (name,) = self.task_router.task_names([f"{source_language or ''}-{target_language}"])
        if name not in self.trained_tasks:
            raise ValueError(
                f"This model routes by {kind} and has no experts for {name!r}; it was trained on "
                f"{known}."
            )
        return self.trained_tasks[name]

    def translate(
        self,
        theta: NestedMap,
        source_ids: tf.Tensor,
        lengths: tf.Tensor,
        tasks: tf.Tensor | None = None,
        request: Request | None = None,
    ) -> BeamOutput:
        """Translates a batch.

        Args:
            theta: the weights.
            source_ids, lengths: int32 [B, L], tags of languages first, EOS last (see
                ModelDir.prefix), and the real tokens of each row, int32 [B].
            tasks: int32 [B], the task of each row, for the router ByTask.
            request: how to search; None for what the params say, without their texts.

        Raises ValueError: the gating is not batch independent, or the request has an option that is
        not supported with the language tags.
        """
        return self.decode(self.lay_out(theta), source_ids, lengths, tasks, request)

    def lay_out(self, theta: NestedMap) -> NestedMap:
        """The weights rearranged for `decode`, computed once for many batches. Raises
        ValueError: the gating is not batch independent."""
        self._check_gating()
        return self.transformer.lay_out(self.in_use(theta), self.num_pieces)

    def check_request(self, request: Request) -> None:
        """Checks, without weights, that `translate` supports a request. Raises ValueError: as
        `translate`."""
        self._check_gating()
        if self.params.language_tags.on_target:
            request.check_after_tag()

    def _check_gating(self):
        moe = self.params.model.moe
        if moe is not None and not moe.gating.batch_independent:
            raise ValueError(
                f"Decoding needs a batch-independent gating, got {moe.gating}: a translation would "
                f"depend on its batch. Train a model with another model.moe.gating, such as Top2()."
            )

    def decode(
        self,
        laid_out: NestedMap,
        source_ids: tf.Tensor,
        lengths: tf.Tensor,
        tasks: tf.Tensor | None = None,
        request: Request | None = None,
    ) -> BeamOutput:
        """`translate`, with weights from `lay_out`."""
        tags, request = self.params.language_tags, request or Request(self.params.decoding)
        source_ids, lengths, first = split_request(tags, source_ids, lengths)
        return beam_search(
            self.transformer, laid_out, source_ids, lengths, request, tasks, tags.start, first
        )

    def score(
        self,
        theta: NestedMap,
        source_ids: tf.Tensor,
        source_lengths: tf.Tensor,
        target_ids: tf.Tensor,
        target_lengths: tf.Tensor,
        tasks: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Log P of each token of given translations in nats, float32 [B, T], 0 beyond a row's
        length, under teacher forcing. They are those of beam search: the score of a translation is
        their sum divided by the length penalty. Sources and tasks are as for `translate`;
        target_ids int32 [B, T], EOS last."""
        theta, transformer = self.in_use(theta), self.transformer
        given = source_ids, source_lengths, target_ids, target_lengths, tasks
        source, target, skipped = sides_of(self.params.language_tags, *given)
        logits = transformer.fprop(theta, source, target, EVALUATION).outputs[:, skipped:]
        log_probs = tf.nn.log_softmax(logits[..., : self.num_pieces])
        chosen = tf.gather(log_probs, target_ids, batch_dims=2)
        return tf.where(target.segments[:, skipped:] > 0, chosen, 0.0)

    def routes(self, theta: NestedMap, *given: Any) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """The experts of each token of given translations, under teacher forcing; `given` as the
        arguments of `score`.

        Returns:
            For each of moe_layers the experts, int32 [B, L or T, K], and the weights of their
            outputs, float32 of that shape, 0 for choices not taken. The decoder's experts at
            position t are those of the step that predicts token t. L is the length that the encoder
            reads, without a tag for the decoder.
        """
        source, target, skipped = sides_of(self.params.language_tags, *given)
        theta = self.in_use(theta)
        hidden = self.transformer.hidden(theta, source, target, EVALUATION)
        ids = {"encoder": source.ids, "decoder": target.ids}
        found = {}
        for layer in self.moe_layers:
            side, name = layer.split("/")
            routing = hidden.routings[side][name]
            weight = tf.where(routing.dispatched, routing.weight, 0.0)
            shape = tf.concat([tf.shape(ids[side]), [-1]], axis=0)
            first = skipped if side == "decoder" else 0
            found[layer] = tuple(
                tf.reshape(table, shape)[:, first:] for table in (routing.expert, weight)
            )
        return found


def split_request(
    tags: LanguageTags, source_ids: tf.Tensor, lengths: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """A batch to translate (int32 [B, L] of `LanguageTags.prefix`, pieces and EOS; lengths [B])
    without the tag that the decoder is given: what the encoder reads, ids and lengths; and that
    first token of each target int32 [B], None if none is given."""
    if not tags.on_target:
        return source_ids, lengths, None
    return source_ids[:, 1:], tf.maximum(lengths - 1, 0), source_ids[:, 0]


def sides_of(
    tags: LanguageTags,
    source_ids: tf.Tensor,
    source_lengths: tf.Tensor,
    target_ids: tf.Tensor,
    target_lengths: tf.Tensor,
    tasks: tf.Tensor | None = None,
) -> tuple[Tokens, Tokens, int]:
    """The sides of a batch under teacher forcing.

    Args:
        tags: where tags of languages stand.
        source_ids, source_lengths: as for `split_request`.
        target_ids, target_lengths: int32 [B, T], pieces and EOS, and [B].
        tasks: int32 [B], for routers by task; or None.

    Returns:
        What the encoder reads; what the decoder reads, the target shifted right behind the start
        and a tag that is given; and where the targets begin among the decoder's outputs.
    """
    source_ids, source_lengths, first = split_request(tags, source_ids, source_lengths)
    inputs = tf.pad(target_ids, [[0, 0], [1, 0]], constant_values=tags.start)
    if first is None:
        inputs = inputs[:, :-1]
    else:
        inputs = tf.concat([inputs[:, :1], first[:, None], inputs[:, 1:-1]], axis=1)
        target_lengths += 1
    source, target = (
        Tokens(
            ids,
            tf.sequence_mask(lengths, tf.shape(ids)[1], tf.int32),
            None if tasks is None else tf.broadcast_to(tasks[:, None], tf.shape(ids)),
        )
        for ids, lengths in ((source_ids, source_lengths), (inputs, target_lengths))
    )
    return source, target, 0 if first is None else 1


# (task, its TrainStep or None without training) -> a runtime, such as runtimes.local.Local.
RuntimeFn = Callable[[TranslationTask, TrainStep | None], Any]
