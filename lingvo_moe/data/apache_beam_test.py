"""What `prepare(beam=…)` says before a pipeline is made; beam_slow_test.py runs pipelines."""

import os
import sys

import pytest

from lingvo_moe.data.prepare import PrepareParams, prepare
from lingvo_moe.testing.commands import error_of


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "lingvo_moe.data.apache_beam", raising=False)
    with pytest.raises(ImportError, match="pip install"):
        prepare(tmp_path / "corpus", tmp_path / "data", PrepareParams(), beam=[])
    assert not os.listdir(tmp_path)


def test_options_of_a_pipeline_need_beam(tmp_path):
    output = f"--output={tmp_path}/data"
    error = error_of("prepare", "--synthetic", output, "--", "--runner=FlinkRunner")
    assert "need --beam" in error
