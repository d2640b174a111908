"""Imported models on many devices, by command: translations and losses are those of one device."""

import re
import subprocess
import sys

import numpy as np
import pytest

from lingvo_moe.pretrained.hugging_face import import_model
from lingvo_moe.testing import hugging_face as testing
from lingvo_moe.testing.commands import succeed
from lingvo_moe.testing.devices import environment, free_address

pytestmark = pytest.mark.slow

SENTENCES = ["The quick brown fox", "jumps over", "the lazy dog.", "Portez ce vieux whisky"]
MODEL = '''
from pathlib import Path
from lingvo_moe.config.registry import register
from lingvo_moe.tasks.model_dir import ModelDir

@register
class Imported:
    """The sizes of an imported model."""

    def params(self):
        return ModelDir.open(Path({logdir!r})).params
'''
FIXED = ("log_every=1", "max_steps=4", "eval_every=4", "checkpoint_every=4")


@pytest.fixture(scope="module", params=["nllb_moe", "m2m100"])
def imported(request, tmp_path_factory):
    """(the imported model, data for it, flags for all trainings of it)."""
    pytest.importorskip("jax")
    directory = tmp_path_factory.mktemp(request.param)
    model_dir = import_model(testing.FIXTURES / request.param, directory / "imported")
    reads, writes = testing.languages(model_dir)
    for split in ("train", "dev"):
        (directory / "corpus" / split).mkdir(parents=True)
        for language in (reads, writes):
            lines = "".join(f"{line} {split}, {language}\n" for line in SENTENCES)
            (directory / "corpus" / split / f"{reads}-{writes}.{language}").write_text(lines)
    flags = ("--new_pieces=0", "--joint_vocab", "--tags_on_both_sides")
    data = directory / "data"
    corpus = f"--corpus={directory / 'corpus'}"
    succeed("prepare", corpus, f"--output={data}", f"--extend={model_dir.path}", *flags)
    (directory / "sizes.py").write_text(MODEL.format(logdir=str(model_dir.path)))
    sets = ["input.batch_size=6", "model.dropout_rate=0.0", *(f"train.{text}" for text in FIXED)]
    sets += ["optimizer.schedule.learning_rate=0.03", "input.virtual_shards=2"]
    if model_dir.params.model.moe:  # groups of tokens that compete for the slots of an expert
        sets += ["model.moe.training=Einsum(groups=6)"]
    return model_dir, [
        *(f"--import={directory / 'sizes.py'}", "--model=sizes.Imported", f"--data={data}"),
        *(f"--init_from={model_dir.path}", *(f"--set={text}" for text in sets)),
    ]


def mesh(model_dir):
    """One expert on each of three devices, and two devices for a dense model."""
    many = "expert:3" if model_dir.params.model.moe else "data:2"
    return ["--runtime=spmd", f"--mesh={many}", f"--virtual_devices={many[-1]}"]


def losses(progress):
    """The loss of each step and on dev."""
    found = re.findall(r"^step \d.* loss ([\d.]+)", progress, re.M)
    assert len(found) == 5, progress
    return [float(loss) for loss in found]


def test_translations_and_scores(imported):
    model_dir, _ = imported
    reads, writes = testing.languages(model_dir)
    flags = [f"--logdir={model_dir.path}", f"--source_language={reads}", f"--to={writes}"]
    one, many = (
        succeed("translate", *flags, "--n_best=2", *runtime, *SENTENCES).stdout.splitlines()
        for runtime in ([], mesh(model_dir))
    )
    assert len(one) == 2 * len(SENTENCES)
    scores = [[float(line.split("\t")[0]) for line in lines] for lines in (one, many)]
    np.testing.assert_allclose(*scores, atol=2e-4)  # printed with four digits
    assert [line.split("\t")[1] for line in one] == [line.split("\t")[1] for line in many]


def test_fine_tuning(imported, tmp_path):
    """On one device, on a mesh, and in two processes."""
    model_dir, flags = imported
    one = losses(succeed("train", *flags, f"--logdir={tmp_path / 'one'}").stderr)
    assert one[3] < one[0] - 0.1
    many = succeed("train", *flags, f"--logdir={tmp_path / 'many'}", *mesh(model_dir)).stderr
    np.testing.assert_allclose(losses(many), one, atol=2e-3)
    np.testing.assert_allclose(losses(in_two(flags, tmp_path / "two")), one, atol=2e-3)


def in_two(flags, logdir):
    """What the first of two processes printed that train together."""
    address = free_address()
    command = [sys.executable, "-m", "lingvo_moe.tools.train", *flags, f"--logdir={logdir}"]
    command += ["--runtime=spmd", f"--coordinator={address}", "--process_count=2"]
    processes = [
        subprocess.Popen(
            [*command, f"--process_index={index}"],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(1),
        )
        for index in range(2)
    ]
    try:
        errors = [process.communicate(timeout=900)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "".join(
        e[-3000:] for e in errors
    )
    return errors[0]
