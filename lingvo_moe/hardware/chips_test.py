import json

import pytest

from lingvo_moe.hardware.chips import (
    GB,
    MEASURED,
    Hardware,
    find_hardware,
    hardware_to_json,
)
from lingvo_moe.hardware.links import Line, Measured, block

ONE = Hardware(
    description="one of a kind",
    matmul={"float32": 1e9},
    memory=GB,
    bandwidth=2e9,
    interconnect=Measured(lines=(Line("all-reduce", 1e-5, 1e9),)),
    efficiency=MEASURED,
)


def test_unknown_hardware():
    with pytest.raises(ValueError, match="Unknown hardware 'tpu_v9'; choose one of tpu_v3, tpu_v4"):
        find_hardware("tpu_v9")


def test_a_file_says_all_of_it(tmp_path):
    path = tmp_path / "one.json"
    path.write_text(json.dumps(hardware_to_json(ONE)))
    assert find_hardware(str(path)) == ONE


@pytest.mark.parametrize("text", ["no json", "null", None])
def test_no_object(tmp_path, text):
    path = tmp_path / "other.json"
    if text is not None:
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=r"other.json (cannot be read as|must hold a) JSON"):
        find_hardware(str(path))


@pytest.mark.parametrize(
    "change",
    [
        {"interconnect": {"lines": [{"alpha": 1}]}},
        {"matmul": {"float32": 1e9, "bfloat16": float("nan")}},
        {"memory": "16 GB"},
        {"efficiency": {"matmul": 2.0}},
        {"colour": "green"},
    ],
    ids=str,
)
def test_another_file(tmp_path, change):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(hardware_to_json(ONE) | change))
    with pytest.raises(ValueError, match=r"other.json is not a file of .*--calibrate.*make it"):
        find_hardware(str(path))


def test_measured_alone():
    """One device has no collectives to measure; more than one cannot be planned by it."""
    alone = Measured(lines=())
    assert alone.seconds("all-reduce", 1e9, block(1)) == 0.0
    with pytest.raises(ValueError, match=r"all-reduce was not measured.* on two devices or more"):
        alone.seconds("all-reduce", 1e9, block(2))
    with pytest.raises(ValueError, match=r"all-to-all was not measured.* on two devices or more"):
        alone.two_levels(2, 1e9, "all-to-all")
