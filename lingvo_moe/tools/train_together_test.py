"""A Mixture-of-Experts model trained by two processes, of which one fails at an evaluation.

Runs itself as the two processes.
"""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from lingvo_moe.jobs import training
from lingvo_moe.jobs.training import train_model
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.devices import environment, free_address
from lingvo_moe.testing.logdirs import random_logdir, training_job
from lingvo_moe.testing.tiny_world import SHRINK, dataset
from lingvo_moe.tools import train

pytestmark = pytest.mark.slow

STEPS = ("max_steps=4", "eval_every=2", "checkpoint_every=1", "log_every=2")
CAUSE = "the disk of this host is gone"


def run_two(logdir, *flags, deed="none", second=()):
    """(exit code, stderr) of each of two processes that train together.

    Args:
        logdir: of both.
        *flags: further ones.
        deed: what the second process does at an evaluation: "fail", at the first one; "stop" and
            a step; or "none".
        second: further flags of the second process alone.
    """
    address = free_address()
    texts = (*SHRINK, *(f"train.{text}" for text in STEPS), "model.moe.training.groups=2")
    command = [
        *(sys.executable, __file__, deed, "--model=tiny.MoE", f"--data={dataset().directory}"),
        *(f"--logdir={logdir}", "--runtime=spmd", "--mesh=expert:2", f"--coordinator={address}"),
        *("--process_count=2", "--set=model.moe.training=Einsum()"),
        *(*(f"--set={text}" for text in texts), *flags),
    ]
    variables = environment(1) | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    processes = [
        subprocess.Popen(
            [*command, *(second if i else ()), f"--process_index={i}"],
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
        )
        for i in range(2)
    ]
    try:
        errors = [process.communicate(timeout=600)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, text) for p, text in zip(processes, errors, strict=True)]


def test_one_fails_at_an_evaluation_and_the_same_command_goes_on(tmp_path):
    pytest.importorskip("jax")
    failed = run_two(tmp_path, deed="fail")
    assert [code for code, _ in failed] == [1, 1]
    assert re.search(rf"^error: process 1 \(pid \d+ on .*\): {CAUSE}$", failed[0][1], re.M)
    assert re.search(rf"^error: {CAUSE}$", failed[1][1], re.M)
    assert "Traceback" not in failed[0][1] + failed[1][1]
    assert time.time() - float(re.search(r"^at ([\d.]+)$", failed[1][1], re.M)[1]) < 60
    assert ModelDir.open(tmp_path).checkpoints.steps() == [1]

    done = run_two(tmp_path)
    assert [code for code, _ in done] == [0, 0], done[0][1] + done[1][1]
    assert "Resuming from step 1." in done[0][1]
    assert "Done at step 4" in done[0][1]
    model_dir = ModelDir.open(tmp_path)
    assert model_dir.checkpoints.steps() == [2, 3, 4]
    with np.load(model_dir.routing_path) as record:  # two layers of eight experts
        assert record["pair_load"].shape[::2] == (2, 8)
    assert not list(tmp_path.rglob("*partial*"))


def test_a_signal_to_one_stops_both_after_the_same_step(tmp_path):
    pytest.importorskip("jax")
    stopped = run_two(tmp_path, "--set=train.max_steps=50", deed="stop 2")
    assert [code for code, _ in stopped] == [143, 143]
    [step] = re.findall(r"Interrupted at step (\d+); the same command resumes", stopped[0][1])
    for _, errors in stopped:
        assert "error:" not in errors
        assert "Traceback" not in errors
    assert ModelDir.open(tmp_path).checkpoints.steps()[-1] == int(step) < 50


def test_a_signal_at_the_last_evaluation_ends_both(tmp_path):
    """They do not fit a length penalty together, which one of them would not do."""
    pytest.importorskip("jax")
    fitted = "--set=decoding.length_penalty=FROM_DATA"
    stopped = run_two(tmp_path, fitted, deed="stop 4")
    assert [code for code, _ in stopped] == [143, 143]
    assert ModelDir.open(tmp_path).checkpoints.steps()[-1] == 4


SLOTS = "--set=model.moe.training=VExperts(devices=2, slots_per_device=6)"


@pytest.mark.parametrize(
    ("flags", "other"),
    [
        ((), "--set=train.seed=7"),
        ((), "--mesh=data:2"),
        (("--hardware=h100", SLOTS), "--hardware=a100"),  # experts would move otherwise
    ],
)
def test_other_flags_end_both_before_the_first_step(flags, other, tmp_path):
    pytest.importorskip("jax")
    failed = run_two(tmp_path / "logdir", *flags, second=(other,))
    assert [code for code, _ in failed] == [1, 1]
    for _, errors in failed:  # its own error, or that of the other if it was faster
        assert "they differ. Give all the same flags." in errors
        assert "Compiling" not in errors
    assert not (tmp_path / "logdir").exists()


FIRST_BLEU = """
import dataclasses
from lingvo_moe.training.criteria import Criterion, DevBleu


@dataclasses.dataclass(frozen=True)
class FirstBleu(DevBleu):
    is_better = Criterion.is_better
"""


def test_dev_bleu_ends_both_processes_at_the_same_step(tmp_path, fresh_plugins):
    pytest.importorskip("jax")
    # A model of a few steps has BLEU 0 each time, so its first evaluation stays the best.
    mine = tmp_path / "mine.py"
    mine.write_text(FIRST_BLEU)
    texts = ("max_steps=8", "dev_bleu_sentences=4", "best_by=FirstBleu()", "patience=1")
    logdir = tmp_path / "logdir"
    done = run_two(logdir, f"--import={mine}", *(f"--set=train.{text}" for text in texts))
    assert [code for code, _ in done] == [0, 0], done[0][1] + done[1][1]
    assert "No better dev BLEU in 1 evaluations (train.patience=1)" in done[0][1]
    assert "Done at step 4; best dev BLEU 0.0 at step 2." in done[0][1]
    assert ModelDir.open(logdir).checkpoints.best() == 2


def test_two_start_from_a_dense_model(tmp_path):
    """Each packs its rows and reads its experts; half of the model is frozen. The step and the
    input are those of one device.
    """
    pytest.importorskip("jax")
    old = random_logdir(tmp_path / "old", (*SHRINK, "model.moe=None"))
    start = f"--init_from={old.path}"
    frozen = "optimizer.rate_factors=(('encoder/.*wi|embedding',0),)"
    texts = (frozen, "train.max_steps=1", "model.dropout_rate=0.0")
    texts += ("input.virtual_shards=2",)  # each process packs one
    sets = [f"--set={text}" for text in texts]
    done = run_two(tmp_path / "two", start, *sets)
    assert [code for code, _ in done] == [0, 0], done[0][1] + done[1][1]
    assert f"Initial weights, from step 1 of {old.path}:" in done[0][1]
    assert "Initial weights" not in done[1][1]
    assert "8 copies of encoder/layer_*/feed_forward/wi" in (tmp_path / "two/init.txt").read_text()

    again = [
        "train.micro_batches=1",
        "model.moe.training.groups=2",
        f"init.logdir={old.path}",
        *texts,
    ]
    train_model(training_job(tmp_path / "one", *again))
    two, one = (ModelDir.open(tmp_path / name).read_checkpoint().tensors for name in ("two", "one"))
    assert {n for n in two if n != "ladder"} == set(one)
    assert not any("wi/" in name for name in two if name.startswith("slots/encoder"))
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, atol=1e-5, err_msg=name)
    source = old.read_checkpoint().tensors
    for name in ("encoder/layer_00/feed_forward/wi", "decoder/embedding/table"):
        np.testing.assert_array_equal(two[f"theta/{name}"], source[f"theta/{name}"])


def main(deed):
    """One of the processes; the second one does the deed."""
    evaluate = training._Evaluator.__call__

    def act(self, step):
        if sys.argv[-1] == "--process_index=1":
            print(f"at {time.time()}", file=sys.stderr, flush=True)
            if deed == "fail":
                raise OSError(CAUSE)
            if deed == f"stop {step}":
                os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, step)

    training._Evaluator.__call__ = act
    train.main()


if __name__ == "__main__":
    main(sys.argv.pop(1))
