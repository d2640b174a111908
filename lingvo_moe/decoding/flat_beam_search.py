"""Flat beam search (GShard, arXiv 2006.16668, section on decoding).

B sentences, K unfinished ("living") hypotheses, N best translations, T steps, V vocabulary.
C caches with P positions, each of Q hypotheses; see decoding/cache.py.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_moe.decoding.cache import of_parents, own_positions
from lingvo_moe.decoding.constraints import allowed, forced, given
from lingvo_moe.decoding.params import MAX_BEAM
from lingvo_moe.decoding.request import Request
from lingvo_moe.layers.embedding import LOGITS_MULTIPLE
from lingvo_moe.layers.transformer import Transformer
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.smart_cond import size_of, smart_cond
from lingvo_moe.nn.special_tokens import BOS, EOS, PAD, UNK

_IMPOSSIBLE = -math.inf
_NO_WORDS = (PAD, BOS, EOS, UNK)
_CHUNK = LOGITS_MULTIPLE
_STEPS_AT_A_TIME = 16  # number of steps by which caches grow

# (token_ids int32 [B, K], step int32 [], caches, visible bool [C, Q, P], source)
#   -> (logits float32 [B, K, V], caches, the aligned source token int32 [B, K] if requested)
StepFn = Callable[
    [tf.Tensor, tf.Tensor, Any, tf.Tensor, Any], tuple[tf.Tensor, Any, tf.Tensor | None]
]


class BeamOutput(NamedTuple):
    """The N best of each sentence, best first."""

    ids: tf.Tensor  # int32 [B, N, T], with EOS, then PAD
    lengths: tf.Tensor  # int32 [B, N], with EOS; 0 if fewer than N were found
    scores: tf.Tensor  # float32 [B, N], log P / length penalty; -inf if fewer than N were found
    log_probs: tf.Tensor | None = None  # float32 [B, N, T], of each token; None if not requested
    # int32 [B, N, T], the index of each token's aligned source token; None if not requested
    sources: tf.Tensor | None = None


class _Living(NamedTuple):
    """Hypotheses without EOS.

    Newest token, log P [B, K], what is known of each token [B, K, T], mask of positions in its
    cache [B, K, P].
    """

    newest: tf.Tensor
    log_probs: tf.Tensor
    written: dict[str, tf.Tensor]
    visible: tf.Tensor


class _Best(NamedTuple):
    """The N best: as BeamOutput, with log P up to each token among what is written [B, N, T]."""

    written: dict[str, tf.Tensor]
    lengths: tf.Tensor
    scores: tf.Tensor


class _Rows(NamedTuple):
    """The state of the sentences in the batch, along the first dimension; caches [C, …, P, D]."""

    sentence: tf.Tensor  # its position in the batch
    max_length: tf.Tensor
    rewarded: tf.Tensor  # largest length that the score counts, float32
    key: tf.Tensor  # a hash of it, for sampling
    source: Any
    caches: Any
    living: _Living
    best: _Best


def beam_search(
    model: Transformer,
    laid_out: NestedMap,
    source_ids: tf.Tensor,
    source_lengths: tf.Tensor,
    request: Request,
    tasks: tf.Tensor | None = None,
    start: int = BOS,
    first: tf.Tensor | None = None,
) -> BeamOutput:
    """Translates a batch; graph code, for any batch and source length.

    Args:
        model, laid_out: the network, and its weights of `Transformer.lay_out`.
        source_ids, source_lengths: int32 [B, L] and [B]. The longest translation of a sentence
            follows from its own length alone.
        request: how to search.
        tasks: int32 [B], for routers by task.
        start: the first input of the decoder.
        first: int32 [B], a given token that precedes each translation; it counts in the length and
            has probability 1. None for none.

    Raises ValueError: options of the request that are not supported together with `first`.
    """
    params = request.params
    if first is not None:
        request.check_after_tag()
        request = dataclasses.replace(request, after_tag=True)
    source = NestedMap(encoded=model.encode(laid_out, source_ids, source_lengths, tasks))
    lengths = params.longest(source_lengths), params.rewarded(source_lengths)
    dtype = laid_out.decoder.embedding.table.dtype

    if params.tokens:  # which source tokens are neither the language's tag, EOS nor padding
        place = tf.range(tf.shape(source_ids)[1])
        source.words = (place > 0) & (place < source_lengths[:, None] - 1)
    if first is not None:
        source.first = first

    def step_fn(token_ids, step, caches, visible, source):
        logits, caches, attention = model.step(
            laid_out, token_ids, step, caches, visible, source.encoded
        )
        if "first" in source:
            forced = tf.range(logits.shape[-1]) == source.first[:, None, None]
            logits = tf.where(step > 0, logits, tf.where(forced, 0.0, _IMPOSSIBLE))
        sources = _most_looked_at(attention, source.words) if params.tokens else None
        return logits, caches, sources

    steps = None
    if source_ids.shape[1] is not None:  # XLA needs a static bound; extra steps are not executed
        steps = max(params.longest(source_ids.shape[1]), len(request.prefix) + 1)
    owners = tf.repeat(source_lengths, params.beam_size // request.sharing)
    caches = model.empty_caches(owners, (steps or 0) * request.sharing, dtype)
    keys = _keys(source_ids, source_lengths)
    found = search(step_fn, caches, source, *lengths, request, steps, start, keys)
    return found if first is None else _without_first(found)


def _keys(ids, lengths):
    """int32 [B], a hash of each source, whatever its padding."""
    place = tf.range(tf.shape(ids)[1])
    weights = tf.where(place < lengths[:, None], place + 1, 0)
    total = tf.reduce_sum(tf.cast(ids, tf.int64) * tf.cast(weights, tf.int64), axis=1)
    return tf.cast(total % 2**31, tf.int32)


def _without_first(output):
    """The same without the first token of each translation."""
    rest = [x if x is None else x[:, :, 1:] for x in (output.ids, output.log_probs, output.sources)]
    return BeamOutput(rest[0], tf.maximum(output.lengths - 1, 0), output.scores, *rest[1:])


def _most_looked_at(attention, words):
    """int32 [B, K], of attention [B, N, K, L]: the word with the largest mean over the heads."""
    mean = tf.reduce_mean(tf.cast(attention, tf.float32), axis=1)
    return tf.argmax(tf.where(words[:, None], mean, -1.0), -1, tf.int32)


def search(
    step_fn: StepFn,
    caches: Any,
    source: Any,
    max_lengths: tf.Tensor,
    rewarded: tf.Tensor,
    request: Request,
    steps: int | None = None,
    start: int = BOS,
    keys: tf.Tensor | None = None,
) -> BeamOutput:
    """Flat beam search over any step function.

    `visible` is the mask of each hypothesis's positions in its cache. If hypotheses share a cache,
    re-ordering them changes only this mask and the small token table. In each step every living
    hypothesis followed by EOS is a candidate for the N best. A sentence is done when no living
    hypothesis could reach a better score, even at the longest length with only tokens of
    probability 1. EOS is not allowed while a hypothesis has no word, except at the longest length.
    There each living hypothesis is ended by EOS, with EOS's own probability. PAD, BOS and UNK are
    never generated. Of equal scores the lower beam is taken, then the lower id.

    With a static number of steps there is one loop with static shapes, which XLA needs. Otherwise
    caches grow when they are full, and finished sentences are removed from the batch.

    Args:
        step_fn: one step of the model; `start` is its first input.
        caches: state of step_fn, any structure of tensors [C, …, P, D]; P is steps · Q, or 0 if
            steps is None.
        source: other inputs of step_fn, any structure of tensors [B, …].
        max_lengths: int32 [B], at least 1, with EOS.
        rewarded: float32 [B], the largest length that the score counts, with EOS.
        request: how to search.
        steps: T, at least the largest of max_lengths; None for exactly that number, dynamic.
        keys: int32 [B], hashes of the sentences, for sampling; None if all are equal.
    """
    batch = tf.shape(max_lengths)[0]
    max_lengths = tf.maximum(max_lengths, forced(request.prefix) + 1)
    # At least 0: the maximum over an empty batch is the smallest integer.
    longest = tf.maximum(tf.reduce_max(max_lengths), 0)
    static, steps = steps is not None, longest if steps is None else steps
    positions = steps * request.sharing if static else 0
    best = _nothing(batch, steps, request)
    living = _start(batch, steps, positions, request, start)
    keys = tf.zeros_like(max_lengths) if keys is None else keys
    rows = _Rows(tf.range(batch), max_lengths, rewarded, keys, source, caches, living, best)
    if static:
        return _output(_run(step_fn, tf.constant(0), rows, steps, request)[1].best)

    def unfinished(step, rows, best):
        del best
        return (step < steps) & tf.reduce_any(_alive(rows))

    def advance(step, rows, best):
        rows = _grown(_only(rows, _alive(rows), request), step, request.sharing)
        until = tf.shape(rows.living.visible)[2] // request.sharing
        step, rows = _run(step_fn, step, rows, tf.minimum(until, steps), request, leave=True)
        place = rows.sentence[:, None]
        best = tf.nest.map_structure(
            lambda all, new: tf.tensor_scatter_nd_update(all, place, new), best, rows.best
        )
        return step, rows, best

    state = (tf.constant(0), rows, best)
    return _output(
        tf.while_loop(unfinished, advance, state, shape_invariants=_invariants(state))[2]
    )


def _output(best):
    """The BeamOutput of the best."""
    written = best.written
    if "totals" not in written:
        return BeamOutput(written["ids"], best.lengths, best.scores)
    before = tf.pad(written["totals"], [[0, 0], [0, 0], [1, 0]])[..., :-1]
    real = tf.range(tf.shape(before)[2]) < best.lengths[..., None]
    log_probs = tf.where(real, written["totals"] - before, 0.0)
    return BeamOutput(written["ids"], best.lengths, best.scores, log_probs, written["sources"])


def _run(step_fn, step, rows, until, request, leave=False):
    """Runs steps until `until`, or until all sentences (with `leave`, a quarter) are done."""

    def unfinished(step, rows):
        alive = tf.reduce_sum(tf.cast(_alive(rows), tf.int32))
        enough = 4 * alive > 3 * tf.size(rows.sentence) if leave else alive > 0
        return (step < until) & enough

    advance = functools.partial(_advance, step_fn, request)
    return tf.while_loop(unfinished, advance, (step, rows), shape_invariants=_shapes((step, rows)))


def _advance(step_fn, request, step, rows):
    """One step of all sentences; returns the next step and the rows after it."""
    living, params, sharing = rows.living, request.params, request.sharing
    visible = living.visible | own_positions(step, living.visible, sharing)
    by_cache = tf.reshape(visible, [-1, sharing, tf.shape(visible)[2]])
    newest = tf.where(living.log_probs > _IMPOSSIBLE, living.newest, PAD)
    logits, caches, sources = step_fn(newest, step, rows.caches, by_cache, rows.source)
    least = tf.maximum(params.min_length, forced(request.prefix) + 1)
    may_end = (step + 1 >= least) & _has_words(living.written["ids"], step, request)
    must_end = step + 1 >= rows.max_length
    may_end |= must_end[:, None]
    permitted = allowed(logits, living.written["ids"], step, request)
    scored = living.log_probs, logits, permitted, may_end
    continuations = smart_cond(
        request.samples,
        lambda: _draw(*scored, must_end[:, None], step, rows.key, params),
        lambda: _choose(*scored, params),
    )
    living = living._replace(visible=visible)
    best = _offer(rows, living, continuations.ended, sources, step, request)
    living = _extend(living, continuations, sources, step)
    caches = of_parents(caches, continuations.parent, sharing, request.in_order)
    no_better = _no_better(living.log_probs, rows, best.scores, request)
    log_probs = tf.where((must_end | no_better)[:, None], _IMPOSSIBLE, living.log_probs)
    living = living._replace(log_probs=log_probs)
    return step + 1, rows._replace(caches=caches, living=living, best=best)


class _Continuations(NamedTuple):
    """How hypotheses continue, [B, K] each."""

    ended: tf.Tensor  # log P of each hypothesis followed by EOS
    # parent, token, log_probs: of the K new hypotheses, which hypothesis each continues, by which
    # token, and its log P
    parent: tf.Tensor
    token: tf.Tensor
    log_probs: tf.Tensor


def _choose(log_probs, logits, allowed_logits, may_end, params):
    """The K best continuations by tokens other than EOS."""
    count = params.beam_size + len(_NO_WORDS)
    max_count = MAX_BEAM + len(_NO_WORDS)
    if not tf.is_tensor(count):  # a graph for any beam size has a vocabulary of a real model
        max_count = count = min(count, logits.shape[-1] or count)
    choices = best_choices(allowed_logits, count, max_count)
    unchanged = allowed_logits is logits
    log_probs -= choices.log_total if unchanged else tf.reduce_logsumexp(logits, axis=-1)
    ended = tf.where(may_end, log_probs + logits[..., EOS], _IMPOSSIBLE)
    beams = size_of(choices.ids, 1)
    totals = log_probs[..., None] + choices.logits
    totals = tf.where(_is_one_of(choices.ids, _NO_WORDS), _IMPOSSIBLE, totals)
    log_probs, index = tf.math.top_k(tf.reshape(totals, [-1, beams * count]), beams)
    token = tf.gather(tf.reshape(choices.ids, [-1, beams * count]), index, batch_dims=1)
    token = tf.where(log_probs > _IMPOSSIBLE, token, PAD)  # there may be none
    return _Continuations(ended, index // count, token, log_probs)


def _draw(log_probs, logits, allowed_logits, may_end, must_end, step, keys, params):
    """A token for each sample."""
    never = _is_one_of(tf.range(logits.shape[-1]), (PAD, BOS, UNK))
    never |= _is_one_of(tf.range(logits.shape[-1]), (EOS,)) & ~may_end[..., None]
    token = params.sampling.draw(tf.where(never, _IMPOSSIBLE, allowed_logits), step, keys)
    token = tf.where(must_end, EOS, token)
    log_probs -= tf.reduce_logsumexp(logits, axis=-1)
    log_probs += tf.gather(logits, token, batch_dims=2)
    ends = token == EOS
    return _Continuations(
        tf.where(ends, log_probs, _IMPOSSIBLE),
        tf.broadcast_to(tf.range(tf.shape(token)[1]), tf.shape(token)),
        token,
        tf.where(ends, _IMPOSSIBLE, log_probs),
    )


def _write(written, step, ids, totals, sources):
    """What is written [B, K, T], with one more token [B, K]; only what is kept of it."""
    new = {"ids": ids, "totals": totals, "sources": sources}
    here = tf.range(tf.shape(written["ids"])[2]) == step
    return {name: tf.where(here, new[name][..., None], old) for name, old in written.items()}


def _is_one_of(ids, some):
    return tf.reduce_any(ids[..., None] == tf.constant(some), axis=-1)


def _alive(rows):
    """bool [B]: which sentences have hypotheses left."""
    return tf.reduce_any(rows.living.log_probs > _IMPOSSIBLE, axis=1)


def _only(rows, keep, request):
    """The rows to keep."""

    def kept(tree, keep):
        index = tf.where(keep)[:, 0]
        return tf.nest.map_structure(lambda x: tf.gather(x, index), tree)

    caches = kept(rows.caches, tf.repeat(keep, request.params.beam_size // request.sharing))
    return kept(rows._replace(caches=()), keep)._replace(caches=caches)


def _grown(rows, step, sharing):
    """The rows with room for more steps if the caches are full."""
    visible = rows.living.visible
    full = step * sharing >= tf.shape(visible)[2]
    more = tf.where(full, _STEPS_AT_A_TIME * sharing, 0)

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


def _start(batch, steps, positions, request, start):
    """Hypotheses with the start only: in beam 0, or for samples in every beam."""
    params = request.params
    beams = params.beam_size
    alive = (tf.range(beams) == 0) | request.samples
    return _Living(
        newest=tf.fill([batch, beams], start),
        log_probs=tf.tile(tf.where(alive, 0.0, _IMPOSSIBLE)[None], [batch, 1]),
        written=_unwritten([batch, beams, steps], params),
        visible=tf.fill([batch, beams, positions], False),
    )


def _nothing(batch, steps, request):
    n = request.count
    return _Best(
        written=_unwritten([batch, n, steps], request.params),
        lengths=tf.fill([batch, n], 0),
        scores=tf.fill([batch, n], _IMPOSSIBLE),
    )


def _unwritten(shape, params):
    """The stored values of each token: its id and, if requested, log P up to it and its source."""
    written = {"ids": tf.fill(shape, PAD)}
    if params.tokens:
        written |= {"totals": tf.zeros(shape), "sources": tf.fill(shape, 0)}
    return written


def _has_words(ids, step, request):
    """bool [B, K]: whether one of the first `step` tokens is neither a space nor a given tag."""
    place = tf.range(tf.shape(ids)[2])
    words = (place >= int(request.after_tag)) & (place < step) & (ids != PAD)
    if given(request.spaces):
        words &= ~tf.reduce_any(ids[..., None] == tf.convert_to_tensor(request.spaces), axis=-1)
    return tf.reduce_any(words, axis=-1)


def _divisors(length, rows, request):
    """Of log P of a length int32 [] or [B]: float32 [B, 1], or [B, N] to compare N penalties."""
    length = tf.minimum(tf.cast(length, tf.float32), rows.rewarded)
    exponents = request.penalties or (None,)
    return tf.stack([request.params.penalty(length, alpha) for alpha in exponents], axis=-1)


def _no_better(log_probs, rows, scores, request):
    """bool [B]: whether no living hypothesis can end with a score above those of the best."""
    divisors = _divisors(rows.max_length, rows, request)
    bounds = tf.reduce_max(log_probs, axis=1)[:, None] / divisors
    return tf.reduce_all(bounds <= (scores if request.penalties else scores[:, -1:]), axis=1)


def _best(scores, log_probs, divisors, request):
    """The N best scores of N earlier ones and K new ones [B, N], and their places among both."""
    if not request.penalties:
        both = tf.concat([scores, log_probs / divisors], axis=1)
        return tf.math.top_k(both, request.count)
    new = log_probs[:, None] / divisors[..., None]  # [B, N, K]
    both = tf.concat([scores[..., None], new], axis=2)
    place = tf.argmax(both, axis=2, output_type=tf.int32)
    place = tf.where(place == 0, tf.range(request.count), request.count - 1 + place)
    return tf.reduce_max(both, axis=2), place


def _offer(rows, living, log_probs, sources, step, request):
    """The N best of the earlier ones and of every living hypothesis followed by EOS."""
    best, divisors = rows.best, _divisors(step + 1, rows, request)
    scores, index = _best(best.scores, log_probs, divisors, request)
    eos = tf.fill(tf.shape(log_probs), EOS)
    ended = _write(living.written, step, eos, log_probs, sources)
    lengths = tf.concat([best.lengths, tf.fill(tf.shape(log_probs), step + 1)], axis=1)
    lengths = tf.gather(lengths, index, batch_dims=1)
    written = {
        name: tf.gather(tf.concat([old, ended[name]], axis=1), index, batch_dims=1)
        for name, old in best.written.items()
    }
    found = scores > _IMPOSSIBLE
    written["ids"] = tf.where(found[..., None], written["ids"], PAD)
    return _Best(written, tf.where(found, lengths, 0), scores)


def _extend(living, continuations, sources, step):
    """The K hypotheses that continue."""
    parents = (living.written, living.visible, () if sources is None else sources)
    written, visible, sources = tf.nest.map_structure(
        lambda x: tf.gather(x, continuations.parent, batch_dims=1), parents
    )
    written = _write(written, step, continuations.token, continuations.log_probs, sources)
    return _Living(continuations.token, continuations.log_probs, written, visible)


class Choices(NamedTuple):
    """The best tokens after each hypothesis, best first."""

    ids: tf.Tensor  # int32 [B, K, C]
    logits: tf.Tensor  # float32 [B, K, C], the logits of ids
    log_total: tf.Tensor  # float32 [B, K], log Σ exp of all logits


def best_choices(logits: tf.Tensor, count: int | tf.Tensor, max_count: int) -> Choices:
    """The C best of V tokens, by logits float32 [B, K, V]; of equal ones the lower id first.

    If V is divided into chunks, the C best are in the C chunks with the largest maxima, so only
    these are searched. `count` is C, and `max_count` the largest C of this graph.
    """
    size = logits.shape[-1]
    if size is None or size % _CHUNK or size <= 2 * max_count * _CHUNK:
        best, ids = tf.math.top_k(logits, count)
        return Choices(ids, best, tf.reduce_logsumexp(logits, axis=-1))
    beams = size_of(logits, 1)
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
