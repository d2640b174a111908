"""Flat beam search (GShard, arXiv 2006.16668, section on decoding).

B sentences, K living hypotheses, N best kept, T steps, P flat positions (T·K), V vocabulary.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import tensorflow as tf

from lingvo_moe.core.fields import NonNegativeFloat, Params, PositiveInt, Rule
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.core.tokens import BOS, EOS, PAD, UNK
from lingvo_moe.layers.transformer import Transformer

MAX_BEAM = 64  # wider beams find no better translations (Koehn and Knowles 2017) and fill memory
_Beam = Annotated[int, Rule(f"1 to {MAX_BEAM}", lambda size: 1 <= size <= MAX_BEAM)]
_IMPOSSIBLE = -math.inf
_NEVER_GENERATED = (PAD, BOS, UNK)

# (token_ids int32 [B, K], step int32 [], caches, visible bool [B, K, P])
#   -> (logits float32 [B, K, V], caches)
StepFn = Callable[[tf.Tensor, tf.Tensor, Any, tf.Tensor], tuple[tf.Tensor, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSearchParams(Params):
    """How to search.

    Attributes:
        beam_size: K, 1 to MAX_BEAM. Memory grows with its square.
        n_best: N, how many translations to return, 1 to MAX_BEAM.
        length_penalty: α of score = log P / ((5 + length)/6)^α (Wu et al. 2016, equation 14); the
            length counts EOS.
        length_ratio, length_offset: a translation has at most ratio · source length + offset
            tokens, EOS included; it ends there whatever the model says.
    """

    beam_size: _Beam = 4
    n_best: _Beam = 1
    length_penalty: NonNegativeFloat = 0.6
    length_ratio: NonNegativeFloat = 1.5
    length_offset: PositiveInt = 10  # leaves room for EOS


class BeamOutput(NamedTuple):
    """The N best of each sentence, best first.

    Attributes:
        ids: int32 [B, N, T], EOS included, then PAD.
        lengths: int32 [B, N], EOS included; 0 where fewer than N were found.
        scores: float32 [B, N], log P / length penalty; -inf where fewer than N were found.
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    scores: tf.Tensor


class _Living(NamedTuple):
    """Hypotheses without EOS: newest token, log P [B, K], tokens [B, K, T], mask [B, K, P]."""

    newest: tf.Tensor
    log_probs: tf.Tensor
    ids: tf.Tensor
    visible: tf.Tensor


def beam_search(
    model: Transformer,
    theta: NestedMap,
    source_ids: tf.Tensor,
    source_lengths: tf.Tensor,
    params: BeamSearchParams,
    num_pieces: int | None = None,
    tasks: tf.Tensor | None = None,
) -> BeamOutput:
    """Translates a batch; graph code, for any batch and source length.

    Args:
        model: the network.
        theta: its weights.
        source_ids: int32 [B, L].
        source_lengths: int32 [B]. A sentence's longest translation follows from its own length, so
            its batch-mates have no part in it.
        params: how to search.
        num_pieces: pieces of the target vocabulary; rows of the embedding table beyond them are
            never generated. None where there are none.
        tasks: int32 [B], for routers by task.
    """
    source = model.encode(theta, source_ids, source_lengths, tasks)
    ratio = params.length_ratio * tf.cast(source_lengths, tf.float32)
    max_lengths = tf.cast(tf.math.ceil(ratio), tf.int32) + params.length_offset
    dtype = theta.encoder.embedding.table.dtype
    steps = _num_steps(max_lengths)
    if source_ids.shape[1] is not None:  # XLA wants to know; the extra steps are never taken
        steps = math.ceil(params.length_ratio * source_ids.shape[1]) + params.length_offset
    positions = steps * params.beam_size
    caches = model.empty_caches(tf.shape(source_ids)[0], positions, dtype)

    def step_fn(token_ids, step, caches, visible):
        logits, caches = model.step(theta, token_ids, step, caches, visible, source)
        return logits[..., :num_pieces], caches

    return search(step_fn, caches, max_lengths, params, steps)


def search(
    step_fn: StepFn,
    caches: Any,
    max_lengths: tf.Tensor,
    params: BeamSearchParams,
    steps: int | tf.Tensor | None = None,
) -> BeamOutput:
    """Flat beam search over any step function.

    Keys and values of step t's hypothesis k stay at flat position t·K + k for good. When beams are
    re-ordered only `visible`, which says whose tokens are where, and the small token table are.
    Each step offers every living hypothesis with EOS to the N best. A sentence is done when no
    living hypothesis could beat them even at the longest length with nothing but certain tokens to
    come. At its longest length whatever lives is ended by EOS, at EOS's own probability. PAD, BOS
    and UNK are never generated. Ties go to the lower beam, then the lower id.

    Args:
        step_fn: one step of the model.
        caches: what step_fn carries, any structure of tensors.
        max_lengths: int32 [B], at least 1, EOS included.
        params: how to search.
        steps: T, at least the longest of max_lengths; None for just that.
    """
    batch = tf.shape(max_lengths)[0]
    steps = _num_steps(max_lengths) if steps is None else steps
    state = (tf.constant(0), caches, _start(batch, steps, params), _nothing(batch, steps, params))

    def unfinished(step, caches, living, best):
        del caches, best
        return (step < steps) & tf.reduce_any(living.log_probs > _IMPOSSIBLE)

    def advance(step, caches, living, best):
        visible = living.visible | _own_positions(step, living.visible)
        logits, caches = step_fn(living.newest, step, caches, visible)
        totals = living.log_probs[..., None] + _log_probs(logits)
        best = _offer(best, living.ids, totals[..., EOS], step, params)
        living = _extend(living.ids, visible, totals, step)
        hopeless = step + 1 >= max_lengths
        hopeless |= _bound(living.log_probs, max_lengths, params) <= best.scores[:, -1]
        log_probs = tf.where(hopeless[:, None], _IMPOSSIBLE, living.log_probs)
        return step + 1, caches, living._replace(log_probs=log_probs), best

    invariants = tf.nest.map_structure(lambda x: x.shape, state)
    *_, best = tf.while_loop(unfinished, advance, state, shape_invariants=invariants)
    return best


def _num_steps(max_lengths):
    """T; the maximum over an empty batch is the least of all integers."""
    return tf.maximum(tf.reduce_max(max_lengths), 0)


def _start(batch, steps, params):
    """One living hypothesis a sentence: BOS alone, in beam 0."""
    beams = params.beam_size
    log_probs = tf.tile([[0.0] + [_IMPOSSIBLE] * (beams - 1)], [batch, 1])
    return _Living(
        newest=tf.fill([batch, beams], BOS),
        log_probs=log_probs,
        ids=tf.fill([batch, beams, steps], PAD),
        visible=tf.fill([batch, beams, steps * beams], False),
    )


def _nothing(batch, steps, params):
    n = params.n_best
    return BeamOutput(
        ids=tf.fill([batch, n, steps], PAD),
        lengths=tf.fill([batch, n], 0),
        scores=tf.fill([batch, n], _IMPOSSIBLE),
    )


def _own_positions(step, visible):
    """bool [1, K, P]: the flat position that each beam writes in this step."""
    beams = visible.shape[1]
    position = step * beams + tf.range(beams)
    return (tf.range(tf.shape(visible)[2])[None] == position[:, None])[None]


def _log_probs(logits):
    """float32 [B, K, V], with no chance for what is never generated."""
    vocab_size = logits.shape[-1]
    forbidden = [i for i in _NEVER_GENERATED if i < vocab_size]
    mask = tf.reduce_any(tf.range(vocab_size)[:, None] == tf.constant(forbidden), axis=1)
    return tf.where(mask, _IMPOSSIBLE, tf.nn.log_softmax(logits))


def _penalty(length, params):
    return ((5.0 + tf.cast(length, tf.float32)) / 6.0) ** params.length_penalty


def _bound(log_probs, max_lengths, params):
    """float32 [B]: no living hypothesis can end with a better score than this."""
    return tf.reduce_max(log_probs, axis=1) / _penalty(max_lengths, params)


def _offer(best, ids, log_probs, step, params):
    """The N best of those at hand and every living hypothesis ended here by EOS."""
    scores = tf.concat([best.scores, log_probs / _penalty(step + 1, params)], axis=1)
    scores, index = tf.math.top_k(scores, params.n_best)
    ended = tf.where(tf.range(tf.shape(ids)[2]) == step, EOS, ids)
    lengths = tf.concat([best.lengths, tf.fill(tf.shape(ids)[:2], step + 1)], axis=1)
    lengths = tf.gather(lengths, index, batch_dims=1)
    ids = tf.gather(tf.concat([best.ids, ended], axis=1), index, batch_dims=1)
    found = scores > _IMPOSSIBLE
    return BeamOutput(tf.where(found[..., None], ids, PAD), tf.where(found, lengths, 0), scores)


def _extend(ids, visible, totals, step):
    """The K best continuations by anything but EOS."""
    batch, beams, vocab_size = tf.shape(totals)[0], totals.shape[1], totals.shape[2]
    totals = tf.where(tf.range(vocab_size) == EOS, _IMPOSSIBLE, totals)
    log_probs, index = tf.math.top_k(tf.reshape(totals, [batch, beams * vocab_size]), beams)
    parent, token = index // vocab_size, index % vocab_size
    ids = tf.gather(ids, parent, batch_dims=1)
    ids = tf.where(tf.range(tf.shape(ids)[2]) == step, token[..., None], ids)
    return _Living(token, log_probs, ids, tf.gather(visible, parent, batch_dims=1))
