"""Tokens that may follow a hypothesis.

B sentences, K hypotheses, T steps, V vocabulary, P length of a prefix, E edges, S places, X bans.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.nn.smart_cond import smart_cond
from lingvo_moe.nn.special_tokens import BOS, PAD

START, WRITTEN = 0, 1


class Edge(NamedTuple):
    """A token that continues a text from one position to another."""

    start: int
    end: int
    token: int


def join_lattices(lattices: Iterable[Sequence[tuple[int, int, int]]]) -> tuple[Edge, ...]:
    """The lattices of several texts as one, for Constraints.

    A lattice has edges (start, end, token): how far its text is written before and after the token;
    0 is nothing, and the largest number all of it; see `Vocabulary.spellings`. The joined edges
    have new positions: 0 is the start of all texts, 1 the end of all.
    """
    edges, free = [], WRITTEN + 1
    for lattice in filter(None, lattices):
        last = max(end for _, end, _ in lattice)
        number = [START, *range(free, free + last - 1), WRITTEN]
        edges += [Edge(number[start], number[end], token) for start, end, token in lattice]
        free += last - 1
    return tuple(edges)


def given(option: tf.Tensor | tuple | int) -> bool:
    """Whether an option may constrain: a tensor always may, other values if not 0 or ()."""
    return tf.is_tensor(option) or bool(option)


class Constraints(NamedTuple):
    """Constraints on the next token.

    In an exported graph, which serves all requests, each option is a tensor. For a request without
    the option its value is 0 or has no elements.
    """

    no_repeat_ngram: int | tf.Tensor  # n, an int or int32 []; 0 allows all repetitions
    prefix: tf.Tensor | tuple[int, ...]  # int32 [P], the first tokens; () for none
    forbidden: tf.Tensor | tuple[Edge, ...]  # int32 [E, 3], edges of `join_lattices`; () for none
    # whether the first token is the tag of the language, and the text begins after it
    after_tag: bool = False

    @property
    def forced(self) -> int | tf.Tensor:
        """P."""
        return tf.shape(self.prefix)[0] if given(self.prefix) else 0

    def start(self, batch: int | tf.Tensor, beams: int) -> tf.Tensor | tuple[()]:
        """bool [B, K, S]: the positions in forbidden texts of empty hypotheses, after BOS."""
        if not given(self.forbidden):
            return ()
        shape = [batch, beams, self._num_places]
        before = tf.broadcast_to(tf.range(self._num_places) == START, shape)
        return self._after(before, tf.fill([batch, beams], BOS))

    def after(
        self, places: tf.Tensor | tuple[()], token: tf.Tensor, step: tf.Tensor
    ) -> tf.Tensor | tuple[()]:
        """The places after one more token of each hypothesis, int32 [B, K], which is token number
        `step`."""
        if not given(self.forbidden):
            return ()
        return self._after(places, tf.where(step == 0, BOS, token) if self.after_tag else token)

    def _after(self, places, token):
        start, end, tokens = self._edges
        taken = tf.gather(places, start, axis=2) & (token[..., None] == tokens)  # [B, K, E]
        by_edge = tf.transpose(tf.cast(taken, tf.int32), [2, 0, 1])
        counts = tf.math.unsorted_segment_sum(by_edge, end, self._num_places)
        return (tf.transpose(counts, [1, 2, 0]) > 0) | (tf.range(self._num_places) == START)

    def allowed(
        self, logits: tf.Tensor, ids: tf.Tensor, step: tf.Tensor, places: tf.Tensor | tuple[()]
    ) -> tf.Tensor:
        """The logits, float32 [B, K, V], -inf for tokens that are forbidden after the first `step`
        of ids, int32 [B, K, T]."""
        bans = []
        if given(self.forbidden):
            start, end, tokens = self._edges
            last = tf.gather(places, start, axis=2) & (end == WRITTEN)
            bans.append(tf.where(last, tokens, PAD))
        if given(self.no_repeat_ngram):
            bans.append(_repeats(ids, step, self.no_repeat_ngram))
        if bans:
            without = logits
            logits = smart_cond(
                self._bans, lambda: self._without(without, bans, step), lambda: without
            )
        if given(self.prefix):
            forced = tf.gather(tf.pad(self.prefix, [[0, 1]]), tf.minimum(step, self.forced))
            other = (tf.range(tf.shape(logits)[-1]) != forced) & (step < self.forced)
            logits = tf.where(other, -math.inf, logits)
        return logits

    @property
    def _bans(self):
        """Whether tokens can be ruled out."""
        if not tf.is_tensor(self.no_repeat_ngram):
            return True
        return (self.no_repeat_ngram > 0) | (tf.size(self.forbidden) > 0)

    def _without(self, logits, bans, step):
        ruled_out = _scattered(tf.concat(bans, axis=-1), logits) & (step >= self.forced)
        return tf.where(ruled_out, -math.inf, logits)

    @property
    def _edges(self):
        """Starts, ends and tokens, int32 [E] each."""
        return tf.unstack(tf.convert_to_tensor(self.forbidden), axis=1)

    @property
    def _num_places(self):
        return tf.maximum(tf.reduce_max(self._edges[1]), WRITTEN) + 1


def _scattered(tokens, logits):
    """bool, the shape of logits [B, K, V]: which of the V are among the tokens [B, K, X]."""
    batch, beams, size = tf.unstack(tf.shape(logits))
    rows = tf.range(batch * beams)[:, None] * size
    place = tf.reshape(rows + tf.reshape(tokens, [batch * beams, -1]), [-1])
    counts = tf.math.unsorted_segment_sum(tf.ones_like(place), place, batch * beams * size)
    return tf.reshape(counts > 0, tf.shape(logits))


def _repeats(ids, step, n):
    """int32 [B, K, T]: the tokens after earlier copies of the newest n-1 tokens, else PAD."""
    place = tf.range(tf.shape(ids)[2])
    matches = tf.broadcast_to((n > 0) & (place >= n - 1) & (place < step), tf.shape(ids))

    def narrow(back, matches):
        # tf.roll moves the last tokens to the front; the first line excludes them.
        same = tf.roll(ids, back, axis=2) == _newest(ids, step, back)[..., None]
        return back + 1, matches & same

    def unfinished(back, matches):
        del matches  # none if n > step: a step has fewer than T rounds, however large n is
        return (back < n) & (n <= step)

    _, matches = tf.while_loop(unfinished, narrow, (tf.constant(1), matches))
    return tf.where(matches, ids, PAD)


def _newest(ids, step, back):
    """int32 [B, K]: the token `back` positions before the end; the first one if there are fewer."""
    return tf.gather(ids, tf.maximum(step - back, 0), axis=2)
