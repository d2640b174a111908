"""Exports run in processes without TensorFlow and this package, with JAX and NumPy."""

import dataclasses
import json
import os

import numpy as np
import pytest

from lingvo_moe.core.params import override
from lingvo_moe.core.registry import get_params
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving.formats.stablehlo import StableHLO
from lingvo_moe.tasks.evaluation import load_translator
from lingvo_moe.testing.exports import (
    SENTENCES,
    SMALL,
    assert_trains_as_here,
    lines,
    run_bare,
    trained,
)

pytest.importorskip("jax")
os.environ["JAX_PLATFORMS"] = "cpu"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def exported(model_dir):
    output = model_dir.path / "export"
    assert StableHLO(batch_size=3).export(model_dir, output) == 3
    return output


def manifest(directory):
    return json.loads((directory / "manifest.json").read_text())


@pytest.mark.slow
def test_translations_are_those_of_the_model(model_dir, exported):
    """In batches of three; three are blank, one is cut into parts."""
    translator, _ = load_translator(model_dir, Local(model_dir.task))
    expected = [best[0].text for best in translator(SENTENCES, "en", warn=pytest.fail)]
    assert len(set(expected)) > 2  # or it would prove little
    result = run_bare(exported, "--to=en", stdin="\r\n".join(SENTENCES) + "\n")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout == lines(expected)
    opened = StableHLO().open(exported)(SENTENCES, "en", None, warn=pytest.fail)
    assert [best[0].text for best in opened] == expected


def test_a_trained_model_goes_on_training_as_it_would_here(model_dir, exported):
    assert_trains_as_here(model_dir, exported)


def test_training_goes_on_from_the_weights_and_translation_uses_their_averages(tmp_path):
    model_dir = trained(tmp_path / "model", "optimizer.ema_decay=0.9")
    output = tmp_path / "export"
    StableHLO(batch_size=3).export(model_dir, output)
    held, averaged = model_dir.checkpoints.read().tensors, model_dir.read_checkpoint().tensors
    name = "theta/encoder/embedding/table"
    assert np.any(np.asarray(held[name]) != np.asarray(averaged[name]))
    for file, tensors in (("state.npz", held), ("weights.npz", averaged)):
        with np.load(output / file) as arrays:
            np.testing.assert_array_equal(arrays[name], tensors[name])
    assert manifest(output)["state"]["weights"] == "weights.npz"


@pytest.mark.slow
def test_so_does_one_that_drops_nothing(model_dir, tmp_path):
    """Rows of experts here, blocks in the program."""
    dropless = ["model.moe.training=Ragged()"]
    model_dir = model_dir.with_overrides(dropless)
    StableHLO(programs=("train",)).export(model_dir, tmp_path)
    assert_trains_as_here(model_dir, tmp_path)


def test_the_files_say_what_they_are(model_dir, exported):
    from jax import export

    said = manifest(exported)
    assert said["state"] == {"file": "state.npz", "step": 3}
    assert said["tags"] == model_dir.tags
    assert said["vocabularies"]["source"] == {
        "file": "source.model",
        "sha256": model_dir.vocabulary("source").sha256,
    }
    for side in ("source", "target"):
        vocabulary = (exported / f"{side}.model").read_bytes()
        assert vocabulary == model_dir.vocabulary(side).model_bytes
    ids = said["programs"]["translate"]["arguments"][1]["source_ids"]
    assert ids == {"shape": [3, 12], "dtype": "int32"}
    assert said["programs"]["translate"]["results"]["ids"]["shape"] == [3, 1, 6 + 10]
    with np.load(exported / "state.npz") as state:
        described = said["programs"]["train"]["arguments"][0]
        assert {n: [list(a.shape), a.dtype.name] for n, a in state.items()} == {
            n: [a["shape"], a["dtype"]] for n, a in described.items()
        }
    for name in ("train", "translate"):
        program = export.deserialize(bytearray((exported / f"{name}.stablehlo").read_bytes()))
        assert program.platforms == ("cpu", "cuda")
        text = (exported / f"{name}.mlir").read_text()
        assert "stablehlo.dot" in text
        # A custom call is a function of one platform's library; there must be none.
        assert "custom_call" not in text


def test_flops_by_hand(exported):
    """Three passes: 2 matrices of 2·M·H = 2·16·32 operations a slot, 2 layers of E·C slots.

    The batch is 4 x 12 tokens on each side, one group; C = ceil(2 · 48 / 8) = 12.
    """
    flops = manifest(exported)["flops"]
    assert flops["experts"] == 3 * 2 * (2 * 2 * 16 * 32) * (8 * 12)
    assert flops["softmax"] == 3 * 2 * 48 * 16 * 512


def test_a_vocabulary_s_unknown_language(exported):
    result = run_bare(exported, "--to=xx")
    assert result.returncode == 1
    assert "error: This model does not translate into 'xx'; it knows en" in result.stderr


def test_an_unknown_source_language(exported):
    """The model does not use it; a wrong one is an error anyway."""
    result = run_bare(exported, "--source_language=xx")
    assert result.returncode == 1
    assert "error: source_language: this model does not translate from 'xx'; it knows" in (
        result.stderr
    )


def test_errors(model_dir, tmp_path):
    wide = override(model_dir.params, ["model.model_dim=32"])
    with pytest.raises(ValueError, match=r"is \(512, 16\) in the checkpoint and \(512, 32\) in"):
        StableHLO().export(dataclasses.replace(model_dir, params=wide), tmp_path / "a")
    empty = dataclasses.replace(model_dir, path=tmp_path)
    with pytest.raises(ValueError, match="has no checkpoint yet; train the model first"):
        StableHLO(programs=("translate",)).export(empty, tmp_path / "b")
    uneven = override(get_params("tiny.MoE"), [*SMALL, "model.moe.training.groups=7"])
    with pytest.raises(ValueError, match=r"48 tokens do not divide into .*groups=7"):
        StableHLO().export_untrained("", uneven, tmp_path / "c")
