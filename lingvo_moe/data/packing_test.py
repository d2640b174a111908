import numpy as np

from lingvo_moe.data.dataset import Example
from lingvo_moe.data.packing import Packer


def _example(source, target):
    return Example(np.array(source, np.int32), np.array(target, np.int32))


def test_first_fit_by_hand():
    # Rows of 5 source and 4 target tokens. The second example does not fit beside the first (3 + 3
    # source tokens), the third does; BOS is 1, EOS is 2.
    packer = Packer(batch_size=2, source_length=5, target_length=4)
    assert packer.empty
    assert packer.add(_example([4, 10, 2], [20, 2]), pair_index=7)
    assert packer.add(_example([4, 11, 2], [21, 22, 2]), pair_index=8)
    assert packer.add(_example([5, 2], [23, 2]), pair_index=9)
    batch = packer.batch()
    assert not packer.empty
    assert batch.source_ids.tolist() == [[4, 10, 2, 5, 2], [4, 11, 2, 0, 0]]
    assert batch.source_segment_ids.tolist() == [[1, 1, 1, 2, 2], [1, 1, 1, 0, 0]]
    assert batch.target_ids.tolist() == [[20, 2, 23, 2], [21, 22, 2, 0]]
    assert batch.target_inputs.tolist() == [[1, 20, 1, 23], [1, 21, 22, 0]]
    assert batch.target_segment_ids.tolist() == [[1, 1, 2, 2], [1, 1, 1, 0]]
    assert batch.target_pair_ids.tolist() == [[7, 7, 9, 9], [8, 8, 8, 0]]
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}


def test_both_sides_must_have_room():
    packer = Packer(batch_size=1, source_length=4, target_length=4)
    assert packer.add(_example([4, 2], [20, 21, 2]), 0)
    before = {name: array.copy() for name, array in packer.batch().items()}
    assert not packer.add(_example([4, 2], [20, 2]), 0)  # the target side is full
    assert all(np.array_equal(before[name], array) for name, array in packer.batch().items())
    assert packer.add(_example([4, 2], [2]), 0)


def test_what_no_row_can_hold():
    packer = Packer(batch_size=1, source_length=3, target_length=2)
    assert packer.fits_empty_row(_example([4, 9, 2], [9, 2]))
    assert not packer.fits_empty_row(_example([4, 9, 9, 2], [2]))
    assert not packer.fits_empty_row(_example([4, 2], [9, 9, 2]))
