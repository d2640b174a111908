import hashlib
import json

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.system import safetensors

ARRAYS = {
    "b/w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.array([1.5, -2.0]).astype(tf.bfloat16.as_numpy_dtype),
    "placement": np.array([[3, -1]], np.int32),
    "empty": np.zeros([0, 4], np.float32),
    "one": np.array(7, np.int64),
}


def test_what_is_saved_is_read(tmp_path):
    safetensors.save(tmp_path / "x", ARRAYS, {"step": "5"})
    arrays, metadata = safetensors.load(tmp_path / "x")
    assert metadata == {"step": "5"}
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].shape == array.shape
        assert np.array_equal(arrays[name], array)


def test_the_bytes_of_a_file(tmp_path):
    safetensors.save(tmp_path / "x", {"w": np.array([1, 258], np.int16)}, {})
    content = (tmp_path / "x").read_bytes()
    length = content[0]  # little-endian, and the header is short
    assert content[1:8] == bytes(7)
    entry = {"dtype": "I16", "shape": [2], "data_offsets": [0, 4]}
    header = json.loads(content[8 : 8 + length])
    # The checksum is that of the header with zeros in its place, and of the arrays.
    found = header["__metadata__"]["lingvo_moe_sha256"].encode()
    zeros = content[8:].replace(found, b"0" * 64)
    assert hashlib.sha256(zeros).hexdigest().encode() == found
    assert header["w"] == entry
    assert length % 8 == 0
    assert content[8 + length :] == b"\x01\x00\x02\x01"


def file_of(header, data=b"\0" * 8):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(**changes):
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 16,
        file_of(entry())[:-1],
        file_of(b"\xff"),
        file_of({"w": 3}),
        file_of(entry(dtype="F8")),
        file_of(entry(shape=[-2])),
        file_of(entry(data_offsets=[-8, 0])),
        file_of(b"[" * 100_000),
    ],
)
def test_damage_is_said_in_a_line_with_the_file(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match="x is no safetensors file, or is") as error:
        safetensors.load(tmp_path / "x")
    assert "\n" not in str(error.value)


def test_a_flipped_bit_is_an_error(tmp_path):
    path = tmp_path / "x.safetensors"
    safetensors.save(path, {"a": np.arange(6, dtype=np.float32)}, {"step": "7"})
    found = safetensors.load(path)
    assert found.metadata == {"step": "7"}
    np.testing.assert_array_equal(found.arrays["a"], np.arange(6))
    whole = path.read_bytes()
    for place in (whole.index(b'"7"') + 1, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="damaged: its checksum"):
            safetensors.load(path)
