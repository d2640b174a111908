"""Flat beam search (GShard, arXiv 2006.16668, section on decoding).

B sentences, K unfinished ("living") hypotheses, N best translations, T steps, P flat positions
(T·K), V vocabulary.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import tensorflow as tf

from lingvo_moe.core.fields import NonNegativeFloat, NonNegativeInt, Params, PositiveInt, Rule
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.core.tokens import BOS, EOS, PAD, UNK
from lingvo_moe.decoding.constraints import banned
from lingvo_moe.decoding.sampling import Sampling
from lingvo_moe.layers.embedding import LOGITS_MULTIPLE
from lingvo_moe.layers.transformer import Transformer

MAX_BEAM = 64  # wider beams find no better translations (Koehn and Knowles 2017) and fill memory
_Beam = Annotated[int, Rule(f"1 to {MAX_BEAM}", lambda size: 1 <= size <= MAX_BEAM)]
_Sequences = Annotated[
    tuple[tuple[int, ...], ...],
    Rule(
        "sequences of one or more ids, none negative",
        lambda sequences: all(ids and min(ids) >= 0 for ids in sequences),
    ),
]
_IMPOSSIBLE = -math.inf
_NO_WORDS = (PAD, BOS, EOS, UNK)
_STEPS_AT_A_TIME = 16  # number of steps by which caches grow
_CHUNK = LOGITS_MULTIPLE

# (token_ids int32 [B, K], step int32 [], caches, visible bool [B, K, P], source)
#   -> (logits float32 [B, K, V], caches)
StepFn = Callable[[tf.Tensor, tf.Tensor, Any, tf.Tensor, Any], tuple[tf.Tensor, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSearchParams(Params):
    """The params of a search.

    Attributes:
        beam_size: K, 1 to MAX_BEAM. Memory grows with its square.
        n_best: N, number of translations to return, 1 to MAX_BEAM.
        length_penalty: α of score = log P / ((5 + length)/6)^α (Wu et al. 2016, equation 14); the
            length counts EOS.
        length_ratio, length_offset: a translation has at most ratio · source length + offset
            tokens, with EOS; it ends there in any case.
        min_length: smallest number of tokens, with EOS; limited by the largest length.
        no_repeat_ngram: n; no sequence of n tokens occurs twice in a translation. 0 for no limit.
        forbidden: sequences of token ids that no translation contains. EOS is always allowed.
        sampling: draws beam_size independent translations of each sentence and returns the N with
            the best scores; None to search.
    """

    beam_size: _Beam = 4
    n_best: _Beam = 1
    length_penalty: NonNegativeFloat = 0.6
    length_ratio: NonNegativeFloat = 1.5
    length_offset: PositiveInt = 10  # leaves room for EOS
    min_length: NonNegativeInt = 0
    no_repeat_ngram: NonNegativeInt = 0
    forbidden: _Sequences = ()
    sampling: Sampling | None = None


class BeamOutput(NamedTuple):
    """The N best of each sentence, best first.

    Attributes:
        ids: int32 [B, N, T], with EOS, then PAD.
        lengths: int32 [B, N], with EOS; 0 if fewer than N were found.
        scores: float32 [B, N], log P / length penalty; -inf if fewer than N were found.
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


class _Rows(NamedTuple):
    """The state of the sentences in the batch, along the first dimension."""

    sentence: tf.Tensor  # its position in the batch
    max_length: tf.Tensor
    source: Any
    caches: Any
    living: _Living
    best: BeamOutput


def beam_search(
    model: Transformer,
    laid_out: NestedMap,
    source_ids: tf.Tensor,
    source_lengths: tf.Tensor,
    params: BeamSearchParams,
    tasks: tf.Tensor | None = None,
) -> BeamOutput:
    """Translates a batch; graph code, for any batch and source length.

    Args:
        model: the network.
        laid_out: its weights, of `Transformer.lay_out`.
        source_ids: int32 [B, L].
        source_lengths: int32 [B]. The longest translation of a sentence follows from its own length
            and not from the other sentences of the batch.
        params: how to search.
        tasks: int32 [B], for routers by task.
    """
    source = model.encode(laid_out, source_ids, source_lengths, tasks)
    ratio = params.length_ratio * tf.cast(source_lengths, tf.float32)
    max_lengths = tf.cast(tf.math.ceil(ratio), tf.int32) + params.length_offset
    dtype = laid_out.decoder.embedding.table.dtype

    def step_fn(*args):
        return model.step(laid_out, *args)

    steps = None
    if source_ids.shape[1] is not None:  # XLA needs a static bound; extra steps are not executed
        steps = math.ceil(params.length_ratio * source_ids.shape[1]) + params.length_offset
    positions = (steps or 0) * params.beam_size
    caches = model.empty_caches(tf.shape(source_ids)[0], positions, dtype)
    return search(step_fn, caches, source, max_lengths, params, steps)


def search(
    step_fn: StepFn,
    caches: Any,
    source: Any,
    max_lengths: tf.Tensor,
    params: BeamSearchParams,
    steps: int | None = None,
) -> BeamOutput:
    """Flat beam search over any step function.

    Keys and values of hypothesis k in step t are at flat position t·K + k and are never moved.
    Re-ordering beams changes only `visible`, the mask of each hypothesis's positions, and the small
    token table. In each step every living hypothesis followed by EOS is a candidate for the N best.
    A sentence is done when no living hypothesis could reach a better score, even at the longest
    length with only tokens of probability 1. At the longest length each living hypothesis is ended
    by EOS, with EOS's own probability. PAD, BOS and UNK are never generated. Of equal scores the
    lower beam is taken, then the lower id.

    With a static number of steps there is one loop with static shapes, which XLA needs. Otherwise
    caches grow when they are full, and finished sentences are removed from the batch.

    Args:
        step_fn: one step of the model.
        caches: state of step_fn, any structure of tensors [B, …, P, D]; P is steps · K, or 0 if
            steps is None.
        source: other inputs of step_fn, any structure of tensors [B, …].
        max_lengths: int32 [B], at least 1, with EOS.
        params: how to search.
        steps: T, at least the largest of max_lengths; None for exactly that number, dynamic.
    """
    batch = tf.shape(max_lengths)[0]
    static, steps = steps is not None, _num_steps(max_lengths) if steps is None else steps
    capacity = steps if static else 0
    best = _nothing(batch, steps, params)
    living = _start(batch, steps, capacity, params)
    rows = _Rows(tf.range(batch), max_lengths, source, caches, living, best)
    if static:
        return _run(step_fn, tf.constant(0), rows, steps, params)[1].best

    def unfinished(step, rows, best):
        del best
        return (step < steps) & tf.reduce_any(_alive(rows))

    def advance(step, rows, best):
        rows = _grown(_only(rows, _alive(rows)), step, params)
        until = tf.shape(rows.living.visible)[2] // params.beam_size
        step, rows = _run(step_fn, step, rows, tf.minimum(until, steps), params, leave=True)
        place = rows.sentence[:, None]
        best = tf.nest.map_structure(
            lambda all, new: tf.tensor_scatter_nd_update(all, place, new), best, rows.best
        )
        return step, rows, best

    state = (tf.constant(0), rows, best)
    return tf.while_loop(unfinished, advance, state, shape_invariants=_invariants(state))[2]


def _run(step_fn, step, rows, until, params, leave=False):
    """Runs steps until `until`, or until all sentences (with `leave`, a quarter) are done."""

    def unfinished(step, rows):
        alive = tf.reduce_sum(tf.cast(_alive(rows), tf.int32))
        enough = 4 * alive > 3 * tf.size(rows.sentence) if leave else alive > 0
        return (step < until) & enough

    def advance(step, rows):
        return step + 1, _advance(step_fn, step, rows, params)

    return tf.while_loop(unfinished, advance, (step, rows), shape_invariants=_shapes((step, rows)))


def _advance(step_fn, step, rows, params):
    """One step of all sentences."""
    living, max_length = rows.living, rows.max_length
    visible = living.visible | _own_positions(step, living.visible)
    logits, caches = step_fn(living.newest, step, rows.caches, visible, rows.source)
    may_end = (step + 1 >= params.min_length) | (step + 1 >= max_length)
    allowed = _allowed(logits, living.ids, step, params)
    go_on = _sample if params.sampling else _search
    living, best = go_on(rows, logits, allowed, may_end[:, None], visible, step, params)
    return rows._replace(caches=caches, living=living, best=best)


def _search(rows, logits, allowed, may_end, visible, step, params):
    """The K best continuations, and the N best translations."""
    living, max_length = rows.living, rows.max_length
    choices = best_choices(allowed, min(params.beam_size + len(_NO_WORDS), logits.shape[-1]))
    total = choices.log_total if allowed is logits else tf.reduce_logsumexp(logits, axis=-1)
    log_probs = living.log_probs - total
    ended = tf.where(may_end, log_probs + logits[..., EOS], _IMPOSSIBLE)
    best = _offer(rows.best, living.ids, ended, step, params)
    living = _extend(living.ids, visible, log_probs, choices, step)
    hopeless = step + 1 >= max_length
    hopeless |= _bound(living.log_probs, max_length, params) <= best.scores[:, -1]
    log_probs = tf.where(hopeless[:, None], _IMPOSSIBLE, living.log_probs)
    return living._replace(log_probs=log_probs), best


def _sample(rows, logits, allowed, may_end, visible, step, params):
    """A token for each sample, and the N best of those that ended with EOS."""
    living = rows.living
    never = _is_one_of(tf.range(logits.shape[-1]), (PAD, BOS, UNK))
    never |= _is_one_of(tf.range(logits.shape[-1]), (EOS,)) & ~may_end[..., None]
    token = params.sampling.draw(tf.where(never, _IMPOSSIBLE, allowed), step)
    token = tf.where(step + 1 >= rows.max_length[:, None], EOS, token)
    log_probs = living.log_probs - tf.reduce_logsumexp(logits, axis=-1)
    log_probs += tf.gather(logits, token, batch_dims=2)
    ends = token == EOS
    ended = tf.where(ends, log_probs, _IMPOSSIBLE)
    best = _offer(rows.best, living.ids, ended, step, params)
    ids = tf.where(tf.range(tf.shape(living.ids)[2]) == step, token[..., None], living.ids)
    return _Living(token, tf.where(ends, _IMPOSSIBLE, log_probs), ids, visible), best


def _allowed(logits, ids, step, params):
    """The logits, -inf for tokens that constraints forbid."""
    if not (params.no_repeat_ngram or params.forbidden):
        return logits
    bans = banned(ids, step, logits.shape[-1], params.no_repeat_ngram, params.forbidden)
    return tf.where(bans, _IMPOSSIBLE, logits)


def _is_one_of(ids, some):
    return tf.reduce_any(ids[..., None] == tf.constant(some), axis=-1)


def _alive(rows):
    """bool [B]: which sentences have hypotheses left."""
    return tf.reduce_any(rows.living.log_probs > _IMPOSSIBLE, axis=1)


def _only(rows, keep):
    """The rows to keep."""
    index = tf.where(keep)[:, 0]
    return tf.nest.map_structure(lambda x: tf.gather(x, index), rows)


def _grown(rows, step, params):
    """The rows with room for more steps if the caches are full."""
    visible = rows.living.visible
    full = step * params.beam_size >= tf.shape(visible)[2]
    more = tf.where(full, _STEPS_AT_A_TIME * params.beam_size, 0)

    def grow(tensor, axis):
        sizes = [[0, 0]] * tensor.shape.rank
        sizes[axis] = [0, more]
        return tf.pad(tensor, sizes)

    caches = tf.nest.map_structure(lambda cache: grow(cache, -2), rows.caches)
    return rows._replace(caches=caches, living=rows.living._replace(visible=grow(visible, -1)))


def _shapes(state):
    return tf.nest.map_structure(lambda x: x.shape, state)


def _invariants(state):
    """Shape invariants of a loop that removes sentences and grows caches."""
    step, rows, best = state

    def loose(tensor, *axes):
        return tf.TensorShape([None if i in axes else n for i, n in enumerate(tensor.shape)])

    invariant = tf.nest.map_structure(lambda x: loose(x, 0), rows)
    caches = tf.nest.map_structure(lambda x: loose(x, 0, x.shape.rank - 2), rows.caches)
    living = invariant.living._replace(visible=loose(rows.living.visible, 0, 2))
    return step.shape, invariant._replace(caches=caches, living=living), _shapes(best)


def _num_steps(max_lengths):
    """T, at least 0: the maximum over an empty batch is the smallest integer."""
    return tf.maximum(tf.reduce_max(max_lengths), 0)


def _start(batch, steps, capacity, params):
    """Hypotheses with BOS only: in beam 0, or for samples in every beam."""
    beams = params.beam_size
    others = 0.0 if params.sampling else _IMPOSSIBLE
    log_probs = tf.tile([[0.0] + [others] * (beams - 1)], [batch, 1])
    return _Living(
        newest=tf.fill([batch, beams], BOS),
        log_probs=log_probs,
        ids=tf.fill([batch, beams, steps], PAD),
        visible=tf.fill([batch, beams, capacity * beams], False),
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


class Choices(NamedTuple):
    """The best tokens after each hypothesis, best first.

    Attributes:
        ids: int32 [B, K, C].
        logits: float32 [B, K, C], the logits of ids.
        log_total: float32 [B, K], log Σ exp of all logits.
    """

    ids: tf.Tensor
    logits: tf.Tensor
    log_total: tf.Tensor


def best_choices(logits: tf.Tensor, count: int) -> Choices:
    """The C best of V tokens; of equal ones the lower id first.

    If V is divided into chunks, the C best are in the C chunks with the largest maxima, so only
    these are searched.

    Args:
        logits: float32 [B, K, V].
        count: C.
    """
    beams, size = logits.shape[1:]
    if size % _CHUNK or size <= 2 * count * _CHUNK:
        best, ids = tf.math.top_k(logits, count)
        return Choices(ids, best, tf.reduce_logsumexp(logits, axis=-1))
    chunks = tf.reshape(logits, [-1, size // _CHUNK, _CHUNK])
    maxima = tf.reduce_max(chunks, axis=-1)  # [B·K, V / chunk]
    chunk = tf.math.top_k(maxima, count).indices
    chunk = -tf.math.top_k(-chunk, count).values  # in order, for ties
    among = tf.reshape(tf.gather(chunks, chunk, batch_dims=1), [-1, count * _CHUNK])
    best, place = tf.math.top_k(among, count)
    ids = tf.gather(chunk, place // _CHUNK, batch_dims=1) * _CHUNK + place % _CHUNK
    ids, best = (tf.reshape(x, [-1, beams, count]) for x in (ids, best))
    most = best[..., :1]
    total = tf.reduce_sum(tf.exp(logits - most), axis=-1)
    return Choices(ids, best, most[..., 0] + tf.math.log(total))


def _penalty(length, params):
    return ((5.0 + tf.cast(length, tf.float32)) / 6.0) ** params.length_penalty


def _bound(log_probs, max_lengths, params):
    """float32 [B]: no living hypothesis can end with a better score than this."""
    return tf.reduce_max(log_probs, axis=1) / _penalty(max_lengths, params)


def _offer(best, ids, log_probs, step, params):
    """The N best of the earlier ones and of every living hypothesis followed by EOS."""
    scores = tf.concat([best.scores, log_probs / _penalty(step + 1, params)], axis=1)
    scores, index = tf.math.top_k(scores, params.n_best)
    ended = tf.where(tf.range(tf.shape(ids)[2]) == step, EOS, ids)
    lengths = tf.concat([best.lengths, tf.fill(tf.shape(ids)[:2], step + 1)], axis=1)
    lengths = tf.gather(lengths, index, batch_dims=1)
    ids = tf.gather(tf.concat([best.ids, ended], axis=1), index, batch_dims=1)
    found = scores > _IMPOSSIBLE
    return BeamOutput(tf.where(found[..., None], ids, PAD), tf.where(found, lengths, 0), scores)


def _extend(ids, visible, log_probs, choices, step):
    """The K best continuations by tokens other than EOS."""
    beams, count = choices.ids.shape[1:]
    totals = log_probs[..., None] + choices.logits
    totals = tf.reshape(
        tf.where(_is_one_of(choices.ids, _NO_WORDS), _IMPOSSIBLE, totals), [-1, beams * count]
    )
    log_probs, index = tf.math.top_k(totals, beams)
    parent = index // count
    token = tf.gather(tf.reshape(choices.ids, [-1, beams * count]), index, batch_dims=1)
    token = tf.where(log_probs > _IMPOSSIBLE, token, PAD)  # there may be none
    ids = tf.gather(ids, parent, batch_dims=1)
    ids = tf.where(tf.range(tf.shape(ids)[2]) == step, token[..., None], ids)
    return _Living(token, log_probs, ids, tf.gather(visible, parent, batch_dims=1))
