import importlib.util

import pytest
from absl import flags

from lingvo_moe.runtimes.local import Local
from lingvo_moe.testing.commands import succeed
from lingvo_moe.testing.tiny_world import SHRINK, dataset
from lingvo_moe.tools import runtimes

TINY = [f"--set={text}" for text in SHRINK]
ON_FOUR = ("--runtime=spmd", "--virtual_devices=4", "--mesh=data:2,expert:2")
IN_GROUPS = ("--set=model.moe.training=Gather(groups=4)",)


@pytest.fixture
def parse(monkeypatch):
    """Sets the flags of a tool, for this test alone."""
    values = flags.FlagValues()
    monkeypatch.setattr(flags, "FLAGS", values)
    monkeypatch.setattr(runtimes, "FLAGS", values)
    for name, default in [("runtime", "local"), ("mesh", None), ("coordinator", None)]:
        flags.DEFINE_string(name, default, "", flag_values=values)
    for name in ("virtual_devices", "process_index", "process_count"):
        flags.DEFINE_integer(name, None, "", flag_values=values)
    return lambda *arguments: values(["tool", *arguments])


def test_local_is_the_default_and_alone(parse):
    parse()
    assert isinstance(runtimes.make_runtime(None, None), Local)
    with runtimes.join_by_flags() as process:
        assert process.index == 0


def test_without_jax_the_message_names_the_cure(parse, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    parse("--runtime=spmd")
    for call in (runtimes.join_by_flags().__enter__, lambda: runtimes.make_runtime(None, None)):
        with pytest.raises(ValueError, match=r"pip install 'lingvo_moe\[spmd\]'"):
            call()


@pytest.mark.slow
def test_trained_in_pieces_resumed_and_used_on_one_device(tmp_path):
    """Two steps on four devices, one more, and both runtimes translate with what came of it."""
    pytest.importorskip("jax")
    logdir = tmp_path / "model"
    common = (
        "--model=tiny.MoE",
        f"--data={dataset().directory}",
        f"--logdir={logdir}",
        *TINY,
        *IN_GROUPS,
    )
    first = succeed("train", *common, *ON_FOUR, "--max_steps=2", "--set=train.eval_every=2")
    assert "Done at step 2" in first.stderr
    second = succeed("train", *common, *ON_FOUR, "--max_steps=3", "--set=train.eval_every=3")
    assert "Resuming from step 2" in second.stderr
    assert "Done at step 3" in second.stderr
    outputs = [
        succeed("translate", f"--logdir={logdir}", "--scores", *where, "kara", "mi kara").stdout
        for where in ((), ON_FOUR)
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == 2
