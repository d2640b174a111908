"""Tests of the record: what is written is read, and damage is one clear line."""

import numpy as np
import pytest

from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.testing.reports import make_record


def test_what_is_written_is_read(tmp_path):
    record = make_record()
    record.save(tmp_path / "routing.npz")
    read = RoutingRecord.load(tmp_path / "routing.npz")
    assert (read.layers, read.pairs) == (("encoder/layer_01",), ("de-en", "fr-en"))
    assert all(isinstance(name, str) for name in (*read.layers, *read.pairs))
    for field in ("num_experts", "pair_load"):
        np.testing.assert_array_equal(getattr(read, field), getattr(record, field))
    assert [path.name for path in tmp_path.iterdir()] == ["routing.npz"]


def test_of_metrics_undoes_the_weighting_by_tokens():
    # num_experts is summed with the batches' tokens as weight: 8 · 30 and 4 · 30 over 30 tokens.
    metrics = {
        "tokens": np.float32(30),
        "num_experts": np.array([240.0, 120.0], np.float32),
        **dict.fromkeys(("pair_load", "pair_first", "pair_confidence"), np.ones((2, 1, 8))),
    }
    record = RoutingRecord.of_metrics(metrics, ["encoder/layer_01", "decoder/layer_01"], ["a-b"])
    assert record.num_experts.tolist() == [8, 4]
    assert record.layers == ("encoder/layer_01", "decoder/layer_01")


@pytest.mark.parametrize("kept", [0, 300, -10])
def test_a_damaged_file_is_one_clear_error(tmp_path, kept):
    path = tmp_path / "routing.npz"
    make_record(pair_load=np.arange(2000.0).reshape(1, 2, 1000)).save(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"routing.npz") as error:
        RoutingRecord.load(path)
    assert "\n" not in str(error.value)


def test_no_file(tmp_path):
    with pytest.raises(ValueError, match="eval_every"):
        RoutingRecord.load(tmp_path / "routing.npz")


def test_a_file_of_something_else(tmp_path):
    np.savez(tmp_path / "bad.npz", layers=np.array(["a"]))
    with pytest.raises(ValueError, match="bad"):
        RoutingRecord.load(tmp_path / "bad.npz")
