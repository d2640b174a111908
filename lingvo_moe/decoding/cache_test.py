"""Searches find the same with every kind of cache."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.decoding.cache import of_parents
from lingvo_moe.decoding.sampling import Sampling
from lingvo_moe.testing.slow_search import request_of, sentences, tiny

SHARED, SEPARATE = 65, 1  # values of separate_caches_from


def test_caches_of_parents_by_hand():
    # Two sentences with three hypotheses, numbered from 0.
    caches = tf.reshape(tf.range(6.0), [6, 1, 1, 1])
    parent = tf.constant([[0, 0, 2], [1, 0, 1]])

    def numbers(sharing, in_order):
        return tf.reshape(of_parents(caches, parent, sharing, in_order), [-1]).numpy().tolist()

    assert numbers(1, False) == numbers(1, tf.constant(False)) == [0, 0, 2, 4, 3, 4]
    assert numbers(1, True) == numbers(3, False) == list(range(6))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"prefix": (8, 8), "no_repeat_ngram": 3, "beam_size": 32},
        {"sampling": Sampling(temperature=2.0)},
    ],
    ids=["constraints", "samples"],
)
def test_translations_tokens_and_scores_are_equal(options):
    search = {"beam_size": 4, "n_best": 3, "tokens": True, "length_ratio": 1.0, "length_offset": 5}
    found = {
        least: tiny().output(
            sentences([2, 20, 4, 6]),
            request_of(**search | options, separate_caches_from=least),
        )
        for least in (SHARED, SEPARATE)
    }
    flat, reordered = found.values()
    assert len({tuple(ids) for ids in flat.ids.reshape([-1, flat.ids.shape[2]])}) > 2
    for ours, theirs in zip(flat, reordered, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * (ours.dtype == np.float32))
