import numpy as np

from lingvo_moe.data.batching import padded_batches


def test_longest_first_and_padded_to_multiples_of_eight():
    found = list(padded_batches([[5], [6] * 9, [7, 7], [8], [9] * 40], max_tokens=32))
    (longest, *_), (first, ids, lengths), (second, ids_2, lengths_2) = found
    assert longest == [4]  # longer than a batch
    assert first == [1, 2]
    assert ids.dtype == lengths.dtype == np.int32
    assert ids.tolist() == [[6] * 9 + [0] * 7, [7, 7] + [0] * 14]
    assert lengths.tolist() == [9, 2]
    assert second == [0, 3]  # of equal length: in order of the input
    assert ids_2.tolist() == [[5] + [0] * 7, [8] + [0] * 7]
    assert lengths_2.tolist() == [1, 1]
