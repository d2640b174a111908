import zlib

import numpy as np
import pytest

from lingvo_moe.data.records import Example, Records, write_records


def _example(source, target, *texts):
    return Example(np.array(source, np.int32), np.array(target, np.int32), *texts)


EXAMPLES = [
    _example([4, 9, 65535, 2], [7, 2], "die Katze", "the\ncat"),
    _example([], []),
    _example([4, 2**31 - 1, 2], [6, 5, 2]),  # four bytes per id
    _example([2**16] * 70_000, [2]),  # the first id of four bytes
]


@pytest.fixture
def path(tmp_path):
    assert write_records(tmp_path / "x.records", iter(EXAMPLES)) == 4
    return tmp_path / "x.records"


def test_what_is_written_is_read_in_any_order(path):
    records = Records(path)
    assert len(records) == 4
    assert records.largest == (2**31 - 1, 7)
    for number in (3, 0, 2, 1):
        ours, given = records[number], EXAMPLES[number]
        assert ours.source.dtype == ours.target.dtype == np.int32
        assert (ours.source.tolist(), ours.target.tolist()) == (
            given.source.tolist(),
            given.target.tolist(),
        )
        assert ours[2:] == given[2:]
    assert [len(example.source) for example in records] == [4, 0, 3, 70_000]
    with pytest.raises(IndexError):
        records[4]


def test_the_first_record_by_hand(path):
    """Four lengths of four bytes; ids of two bytes; the texts."""
    content = path.read_bytes()
    head = np.frombuffer(content, "<u4", 4)
    assert head.tolist() == [4, 2, 9, 2]
    assert np.frombuffer(content, "<u2", 6, 16).tolist() == [4, 9, 65535, 2, 7, 2]
    assert content[28:44] == b"die Kat" + b"zethe\ncat"
    start = int.from_bytes(content[-32:-24], "little")
    end, crc = np.frombuffer(content, "<u8,<u4", 1, start)[0]
    assert (end, crc) == (44, zlib.crc32(content[:44]))


def test_no_records(tmp_path):
    assert write_records(tmp_path / "x", []) == 0
    assert list(Records(tmp_path / "x")) == []


def test_any_damaged_byte_is_noticed(path):
    """By the checksum of index and footer, or by that of the record."""
    content, checksum = path.read_bytes(), Records(path).checksum
    rng = np.random.default_rng(0)
    positions = {*range(100), *range(len(content) - 90, len(content))}
    for position in positions | set(rng.integers(len(content), size=100).tolist()):
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(OSError, match=r"damaged|it is t|another"):
            _read_if_same(path, checksum)


def _read_if_same(path, checksum):
    records = Records(path)
    if records.checksum != checksum:
        raise OSError("another file")
    return list(records)
