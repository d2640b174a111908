import sys

import pytest
from gpu_export import export
from gpu_step import PEAKS, _check_torch, main

from lingvo_moe import api
from lingvo_moe.config.params import override, to_fields
from lingvo_moe.hardware.chips import HARDWARE
from lingvo_moe.testing.tiny_world import SHRINK

_TOP_2 = "model.moe.gating=TopK(k=2)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_TOP_2, None),
        ("model.moe=None", None),
        ("model.moe.gating=TopK(k=4)", "model.moe.gating.k=4, but _torch_model.py has 2: export"),
        ("optimizer=Muon()", "optimizer=Muon, but _torch_model.py has Adafactor"),
    ],
)
def test_pytorch_computes_the_same_or_refuses(change, message):
    manifest = {"params": to_fields(override(api.params("tiny.MoE"), [_TOP_2, change]))}
    if message is None:
        _check_torch(manifest)
        return
    with pytest.raises(SystemExit, match=message):
        _check_torch(manifest)


def test_peaks_are_those_of_the_package():
    assert {name: HARDWARE[name.lower()].matmul for name in PEAKS} == PEAKS


@pytest.mark.slow
def test_rows_on_a_cpu(tmp_path, monkeypatch, capsys):
    """That of an engine that is not installed says so, and the others come."""
    pytest.importorskip("jax")
    output = tmp_path / "small"
    sizes = "source_vocab_size=300", "target_vocab_size=300"
    export("tiny.MoE", [*SHRINK, _TOP_2, *sizes], output)
    arguments = ["--steps=2", "--engines=torch,jax", "--row_minutes=5"]
    monkeypatch.setattr(sys, "argv", ["gpu_step.py", str(output), *arguments])
    main()
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    torch, jax = (dict(zip(lines[0], line, strict=False)) for line in lines[2:])
    assert jax["export, engine"] == "small, float32, jax"
    assert 0 < float(jax["MFU"].partition("%")[0]) < 100
    assert float(jax["ms/step"]) > 0
    assert torch["ms/step"]  # a time, or why there is none
