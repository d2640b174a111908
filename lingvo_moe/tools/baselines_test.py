import signal
import types

import pytest

from lingvo_moe.testing.tiny_world import dataset
from lingvo_moe.tools import baselines


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_before_anything_is_scored(monkeypatch, tmp_path, number, code):
    values = {"data": dataset().directory, "output": tmp_path, "model": "tiny.Bilingual"}
    flags = types.SimpleNamespace(**values, pairs=["qna-en"], set=[], split="test")
    monkeypatch.setattr(baselines, "FLAGS", flags)
    monkeypatch.setattr(baselines, "train_baselines", lambda job, pairs: number)
    monkeypatch.setattr(baselines, "translate_split", None)
    with pytest.raises(SystemExit) as end:
        baselines.main([])
    assert end.value.code == code
