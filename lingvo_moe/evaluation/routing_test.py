"""Tests of the record: what is written is read, and damage is one clear line."""

import dataclasses

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


def test_a_new_record_replaces_the_old(tmp_path):
    path = tmp_path / "routing.npz"
    make_record().save(path)
    make_record(pair_load=[[[9.0, 9.0], [9.0, 9.0]]]).save(path)
    read = RoutingRecord.load(path)
    assert read.pair_load.min() == 9


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


def _flip(place):
    """Damages 40 bytes."""

    def damage(data):
        return data[:place] + bytes(b ^ 0xFF for b in data[place : place + 40]) + data[place + 40 :]

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"not a record at all",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-10],
        _flip(50),
        _flip(680),
        _flip(1000),
    ],
    ids=["empty", "text", "half", "cut", "flipped at the start", "in a header", "inside"],
)
def test_a_damaged_file_is_one_clear_error(tmp_path, damage):
    path = tmp_path / "routing.npz"
    make_record(pair_load=np.arange(2000.0).reshape(1, 2, 1000)).save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"routing.npz holds no record of routing \(") as error:
        RoutingRecord.load(path)
    assert "\n" not in str(error.value)


def test_no_file_and_a_file_of_other_fields(tmp_path):
    with pytest.raises(ValueError, match=r"routing \(there is no such file\)\. .*train.eval_every"):
        RoutingRecord.load(tmp_path / "routing.npz")
    np.savez(tmp_path / "other.npz", x=1)
    with pytest.raises(ValueError, match=r"other.npz holds no record of routing \('layers"):
        RoutingRecord.load(tmp_path / "other.npz")


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": np.array("encoder/layer_01")},
        {"layers": np.array(["a", "b"])},
        {"pairs": np.array(["de-en"])},
        {"num_experts": np.array([3])},
        {"num_experts": np.array([0])},
        {"num_experts": np.array(["two"])},
        {"pair_load": np.array(1.0)},
        {"pair_load": np.ones((1, 2))},
        {"pair_load": np.full((1, 2, 2), np.nan)},
        {"pair_load": np.full((1, 2, 2), -1.0)},
        {"pair_load": np.full((1, 2, 2), np.inf)},
    ],
)
def test_a_file_of_something_else(tmp_path, changes):
    fields = dataclasses.asdict(make_record())
    np.savez(tmp_path / "bad.npz", **(fields | changes))
    with pytest.raises(ValueError, match=r"bad\.npz holds no record of routing \("):
        RoutingRecord.load(tmp_path / "bad.npz")
