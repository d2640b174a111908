"""Beam search by the rules of Hugging Face's transformers (4.49), to the token.

B sentences, K beams, N best kept, T steps, P positions of a cache, V vocabulary.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_moe.config.fields import Params
from lingvo_moe.decoding.cache import of_parents, own_positions
from lingvo_moe.nn.special_tokens import EOS, PAD

_IMPOSSIBLE = -math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuggingFace(Params):
    """The rules of `generate(num_beams=K, do_sample=False)`.

    Of all K·V continuations the best 2K are taken in order. EOS among the first K ends a
    translation; further EOS are ignored. The first K other tokens continue. The score of a
    translation is log P / length^α, where α is length_penalty and the length counts EOS. The K best
    ended translations are kept. A sentence is finished when K are kept and the worst of them is at
    least as good as the best continuation divided by the present length^α. At the largest length
    unfinished beams count as they are, without EOS. Every token is allowed. `max_length` of
    `generate` is length_ratio=0 and length_offset=max_length-1 here.

    Attributes:
        early_stopping: whether a sentence is finished as soon as K translations are kept.
    """

    early_stopping: bool = False


class _Kept(NamedTuple):
    """Closed translations [B, K, T], their lengths and scores [B, K]."""

    ids: tf.Tensor
    lengths: tf.Tensor
    scores: tf.Tensor


class _Beams(NamedTuple):
    """Open ones: newest token and log P [B, K], tokens [B, K, T], mask of positions [B, K, P]."""

    newest: tf.Tensor
    log_probs: tf.Tensor
    ids: tf.Tensor
    visible: tf.Tensor


def search_like(
    step_fn: Callable,
    caches: Any,
    source: Any,
    max_lengths: tf.Tensor,
    params: Any,
    steps: int | None,
    start: int,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Beam search by these rules over any step function; arguments as of `flat_beam_search.search`.
    Returns ids, lengths and scores as of a BeamOutput."""
    batch, beams = tf.shape(max_lengths)[0], params.beam_size
    sharing = params.cache.sharing(beams)
    if steps is None:
        steps = tf.maximum(tf.reduce_max(max_lengths), 0)
        caches = tf.nest.map_structure(lambda cache: _with_room(cache, steps * sharing), caches)
    nothing = tf.fill([batch, beams], _IMPOSSIBLE)
    tokens = tf.fill([batch, beams, steps], PAD)
    opened = _Beams(
        newest=tf.fill([batch, beams], start),
        log_probs=tf.tile([[0.0] + [_IMPOSSIBLE] * (beams - 1)], [batch, 1]),
        ids=tokens,
        visible=tf.fill([batch, beams, steps * sharing], False),
    )
    kept = _Kept(tokens, tf.fill([batch, beams], 0), nothing)

    def unfinished(step, caches, opened, kept):
        del caches, kept
        return (step < steps) & tf.reduce_any(opened.log_probs > _IMPOSSIBLE)

    def advance(step, caches, opened, kept):
        visible = opened.visible | own_positions(step, opened.visible, sharing)
        by_cache = tf.reshape(visible, [-1, sharing, tf.shape(visible)[2]])
        newest = tf.where(opened.log_probs > _IMPOSSIBLE, opened.newest, PAD)
        logits, caches, _ = step_fn(newest, step, caches, by_cache, source)
        beam, token, scores = _best(opened.log_probs[..., None] + tf.nn.log_softmax(logits), beams)
        ids = tf.gather(opened.ids, beam, batch_dims=1)
        ids = tf.where(tf.range(tf.shape(ids)[2]) == step, token[..., None], ids)
        penalty = params.penalty(tf.cast(step + 1, tf.float32))
        is_end = token == EOS
        closes = is_end & (tf.range(2 * beams) < beams)
        kept = _keep(kept, ids, tf.where(closes, scores / penalty, _IMPOSSIBLE), step)
        goes_on, rank = tf.math.top_k(tf.where(is_end, _IMPOSSIBLE, scores), beams)
        ids, token, beam = (tf.gather(x, rank, batch_dims=1) for x in (ids, token, beam))
        is_done = kept.scores[:, -1] > _IMPOSSIBLE
        if not params.rules.early_stopping:
            is_done &= kept.scores[:, -1] >= scores[:, 0] / penalty
        ends = ~is_done & (step + 1 >= max_lengths)
        kept = _keep(kept, ids, tf.where(ends[:, None], goes_on / penalty, _IMPOSSIBLE), step)
        goes_on = tf.where((is_done | ends)[:, None], _IMPOSSIBLE, goes_on)
        visible = tf.gather(visible, beam, batch_dims=1)
        caches = of_parents(caches, beam, sharing, in_order=beams == 1)
        return step + 1, caches, _Beams(token, goes_on, ids, visible), kept

    state = (tf.constant(0), caches, opened, kept)
    shapes = tf.nest.map_structure(lambda x: x.shape, state)
    *_, kept = tf.while_loop(unfinished, advance, state, shape_invariants=shapes)
    ids, lengths, scores = (x[:, : params.n_best] for x in kept)
    found = scores > _IMPOSSIBLE
    return tf.where(found[..., None], ids, PAD), tf.where(found, lengths, 0), scores


def _best(scores, beams):
    """Beam, token and score [B, 2K] of the best of [B, K, V], best first; lower ones if equal."""
    size = scores.shape[-1]
    best, index = tf.math.top_k(tf.reshape(scores, [-1, beams * size]), 2 * beams)
    return index // size, index % size, best


def _keep(kept, ids, scores, step):
    """The K best of those that are kept and others that end in this step."""
    ids = tf.concat([kept.ids, ids], axis=1)
    lengths = tf.concat([kept.lengths, tf.fill(tf.shape(scores), step + 1)], axis=1)
    scores, index = tf.math.top_k(tf.concat([kept.scores, scores], axis=1), kept.scores.shape[1])
    ids, lengths = (tf.gather(x, index, batch_dims=1) for x in (ids, lengths))
    return _Kept(ids, lengths, scores)


def _with_room(cache, positions):
    """The same with so many positions, [..., P, D]."""
    padding = [[0, 0]] * (cache.shape.rank - 2) + [[0, positions - tf.shape(cache)[-2]], [0, 0]]
    return tf.pad(cache, padding)
