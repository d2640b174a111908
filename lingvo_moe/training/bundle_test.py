import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.testing.shards import Sharded
from lingvo_moe.training import bundle
from lingvo_moe.training.bundle import local_pieces, merge_bundles, open_bundle, write_pieces

MATRIX = np.arange(24, dtype=np.float32).reshape(4, 6)


def _store(tmp_path, tensors, writers=1):
    """Writes each tensor by so many processes, merges, opens."""
    prefixes = []
    for writer in range(writers):
        held = {
            name: value(writer) if callable(value) else value for name, value in tensors.items()
        }
        write_pieces(tmp_path / f"writer-{writer}", local_pieces(held, writer))
        prefixes += sorted(p.with_suffix("") for p in tmp_path.glob(f"writer-{writer}-*.index"))
    merge_bundles(prefixes, tmp_path / "state")
    return open_bundle(tmp_path / "state")


@pytest.mark.parametrize("grid", [(4, 1), (1, 3), (2, 2), (1, 1)])
def test_what_many_wrote_reads_whole_and_in_other_slices(tmp_path, grid):
    stored = _store(tmp_path, {"w": Sharded.by_process(MATRIX, grid, 4).__getitem__}, writers=4)[
        "w"
    ]
    assert (stored.shape, stored.dtype) == ((4, 6), np.float32)
    np.testing.assert_array_equal(stored, MATRIX)
    for rows in (slice(0, 1), slice(1, 3), slice(None)):
        for columns in (slice(0, 6), slice(1, 2), slice(3, None)):
            np.testing.assert_array_equal(stored[rows, columns], MATRIX[rows, columns])
    reader = tf.train.load_checkpoint(str(tmp_path / "state"))
    np.testing.assert_array_equal(reader.get_tensor("w"), MATRIX)


def test_each_piece_is_written_once(tmp_path):
    # 24 float32 in two halves, each on two devices, and a scalar that each process has.
    values = {"w": Sharded.by_process(MATRIX, (2, 1), 4).__getitem__, "step": np.int64(7)}
    stored = _store(tmp_path, values, writers=4)
    assert sum(p.stat().st_size for p in tmp_path.glob("state.data-*")) == 24 * 4 + 8
    assert stored["step"][()] == 7


@pytest.mark.parametrize("dtype", ["bfloat16", "int64", "bool"])
def test_dtypes_survive_in_parts(tmp_path, dtype):
    values = MATRIX.astype(tf.as_dtype(dtype).as_numpy_dtype)
    stored = _store(tmp_path, {"w": Sharded.by_process(values, (2, 2), 2).__getitem__}, writers=2)
    assert stored["w"].dtype == values.dtype
    np.testing.assert_array_equal(np.asarray(stored["w"]), values)
    np.testing.assert_array_equal(stored["w"][1:3, 2:5], values[1:3, 2:5])


@pytest.mark.parametrize("value", [7, tf.constant(2.5), np.zeros((0, 3), np.float32)])
def test_other_values_are_whole(tmp_path, value):
    stored = _store(tmp_path, {"x": value})["x"]
    expected = np.asarray(tf.convert_to_tensor(value))
    np.testing.assert_array_equal(np.asarray(stored), expected)
    assert (stored.shape, stored.dtype) == (expected.shape, expected.dtype)


def test_an_empty_slice_needs_no_file(tmp_path):
    stored = _store(tmp_path, {"w": MATRIX})["w"]
    for path in tmp_path.iterdir():
        path.unlink()
    assert stored[2:2].shape == (0, 6)
    with pytest.raises(OSError, match="or gone"):
        stored[0:1]


class TestCutting:
    # A row of MATRIX is 24 bytes.
    @pytest.mark.parametrize(
        ("limit", "lengths"), [(96, [(4, 6)]), (95, [(3, 6), (1, 6)]), (16, [(1, 4), (1, 2)] * 4)]
    )
    def test_pieces_are_bounded(self, tmp_path, monkeypatch, limit, lengths):
        monkeypatch.setattr(bundle, "_PIECE_BYTES", limit)
        pieces = list(local_pieces({"w": MATRIX}, 0))
        assert [piece.box.lengths for piece in pieces] == lengths
        stored = _store(tmp_path, {"w": MATRIX, "t": tf.constant(MATRIX)})
        np.testing.assert_array_equal(stored["w"], MATRIX)
        np.testing.assert_array_equal(stored["t"][1:3, 3:5], MATRIX[1:3, 3:5])

    def test_bundles_are_bounded(self, tmp_path, monkeypatch):
        monkeypatch.setattr(bundle, "_PIECE_BYTES", 24)
        monkeypatch.setattr(bundle, "_WRITE_BYTES", 50)  # two rows
        stored = _store(tmp_path, {"w": MATRIX, "step": 7})["w"]
        assert len(list(tmp_path.glob("state.data-*-of-00003"))) == 3  # two rows, two rows, step
        np.testing.assert_array_equal(stored, MATRIX)


class TestDamage:
    def test_a_slice_reads_its_own_pieces_only(self, tmp_path):
        stored = _store(tmp_path, {"w": Sharded.local(MATRIX, (4, 1))})["w"]
        data = tmp_path / "state.data-00000-of-00001"
        content = bytearray(data.read_bytes())
        content[30] ^= 1  # in the second row
        data.write_bytes(content)
        np.testing.assert_array_equal(stored[2:4], MATRIX[2:4])
        with pytest.raises(OSError, match="hecksum"):
            stored[0:2]

    def test_a_data_file_that_is_gone(self, tmp_path):
        values = {"w": Sharded.by_process(MATRIX, (2, 1), 2).__getitem__}
        _store(tmp_path, values, writers=2)
        (tmp_path / "state.data-00001-of-00002").unlink()
        with pytest.raises(OSError, match="48 bytes"):
            open_bundle(tmp_path / "state")
