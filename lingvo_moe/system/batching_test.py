import itertools

import numpy as np

from lingvo_moe.system.batching import batches


def test_batches_are_as_large_as_they_may_be():
    lengths = np.random.default_rng(0).integers(1, 100, size=300).tolist()
    made = list(batches(lengths, 512))
    assert sorted(i for batch in made for i in batch) == list(range(300))
    for batch, following in itertools.pairwise(made):
        longest = -(-max(lengths[i] for i in batch) // 8) * 8
        assert len(batch) * longest <= 512 < (len(batch) + 1) * longest
        assert max(lengths[i] for i in following) <= min(lengths[i] for i in batch)


def test_texts_of_length_zero():
    assert list(batches([0, 3, 0], 8)) == [[1], [0, 2]]
    assert list(batches([0] * 9, 8)) == [list(range(8)), [8]]
