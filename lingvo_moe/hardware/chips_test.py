import json

import pytest

from lingvo_moe.hardware.chips import GB, MEASURED, Efficiency, Hardware, lookup, to_json
from lingvo_moe.hardware.links import Line, Measured


def test_unknown_hardware():
    with pytest.raises(ValueError, match="Unknown hardware 'tpu_v9'; choose one of tpu_v3, tpu_v4"):
        lookup("tpu_v9")


def test_a_file_says_all_of_it(tmp_path):
    hardware = Hardware(
        description="one of a kind",
        matmul={"float32": 1e9},
        memory=GB,
        bandwidth=2e9,
        interconnect=Measured(lines=(Line("all-reduce", 1e-5, 1e9),)),
        efficiency=MEASURED,
    )
    path = tmp_path / "one.json"
    path.write_text(json.dumps(to_json(hardware)))
    assert lookup(str(path)) == hardware


def test_another_file(tmp_path):
    path = tmp_path / "other.json"
    for text in ("{}", "no json", '{"interconnect": {"lines": [{"alpha": 1}]}}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"other.json is no file of .*--calibrate.*make it"):
            lookup(str(path))


def test_bad_efficiency():
    with pytest.raises(ValueError, match=r"network must be in \(0, 1\], got 1.5"):
        Efficiency(network=1.5)
