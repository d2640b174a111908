import pytest

from lingvo_moe.testing.commands import succeed
from lingvo_moe.testing.tiny_world import SHRINK, dataset

TINY = [f"--set={text}" for text in SHRINK]
ON_FOUR = ("--runtime=spmd", "--virtual_devices=4", "--mesh=data:2,expert:2")
IN_GROUPS = ("--set=model.moe.training=Gather(groups=4)",)


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
