"""A checkpoint beside what transformers computes with it (testdata/huggingface/fixtures.py)."""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

from lingvo_moe.data.packing import padded
from lingvo_moe.jobs.evaluation import load_translator
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.special_tokens import EOS
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.model_dir import ModelDir

FIXTURES = Path(__file__).parents[2] / "testdata" / "huggingface"
NAMES = ("m2m100", "nllb", "nllb_moe")


def languages(model_dir: ModelDir) -> tuple[str, str]:
    """Of the sources and the targets."""
    return ("en", "fr") if "en" in model_dir.tags else ("eng_Latn", "fra_Latn")


def reference(directory: Path) -> dict:
    """What transformers computed; ids are those that they have there."""
    return json.loads((directory / "reference.json").read_text(encoding="utf-8"))


def exchanged(ids):
    """Ids of transformers as ours, or back: padding and `<s>` change places."""
    return [{0: 1, 1: 0}.get(int(i), int(i)) for i in ids]


def loaded(model_dir: ModelDir) -> Local:
    """A runtime with the model's weights."""
    runtime = Local(model_dir.task)
    load_translator(model_dir, runtime)
    return runtime


def assert_same_tokens(model_dir: ModelDir, directory: Path) -> None:
    """Every text has the same ids and is decoded to the same text."""
    expected, vocabulary = reference(directory), model_dir.vocabulary("source")
    tags = [vocabulary.tag(language) for language in languages(model_dir)]
    for ids, source, target in zip(
        vocabulary.encode(expected["texts"]), expected["sources"], expected["targets"], strict=True
    ):
        assert exchanged([tags[0], *ids, EOS]) == source
        assert exchanged([tags[1], *ids, EOS]) == target
    texts = vocabulary.decode([exchanged(ids[1:]) for ids in expected["sources"]])
    assert [text.strip() for text in texts] == [text.strip() for text in expected["decoded"]]


def assert_same_log_probs(model_dir: ModelDir, runtime: Local, directory: Path) -> None:
    """Log-probabilities of the targets are within 1e-5, and so are logits but for a constant."""
    expected = reference(directory)
    with np.load(directory / "reference.npz") as stored:
        logits = {int(name): stored[name] for name in stored}
    for number, theirs in logits.items():
        target = exchanged(expected["targets"][1 - number][1 : len(theirs)])
        request = [model_dir.tag(languages(model_dir)[1]), *exchanged(expected["sources"][number])]
        source, given = padded([request]), padded([target])
        ours = runtime.score(*source, *given)[0, : len(target)]
        log_probs = tf.nn.log_softmax(theirs[1:]).numpy()
        wanted = [row[i] for row, i in zip(log_probs, exchanged(target), strict=True)]
        np.testing.assert_allclose(ours, wanted, atol=1e-5)


def assert_same_searches(model_dir: ModelDir, runtime: Local, directory: Path) -> None:
    """What beam searches of transformers found has the same scores here, within 1e-5."""
    expected = reference(directory)
    tag = model_dir.tag(languages(model_dir)[1])
    sources = padded([[tag, *exchanged(ids)] for ids in expected["sources"][:3]])
    for found in expected["searches"].values():
        if None not in found["scores"]:
            written = [exchanged(ids[2:]) for ids in found["ids"]]  # after EOS and the tag
            log_probs = np.asarray(runtime.score(*sources, *padded(written)))
            lengths = [len(ids) for ids in written]
            totals = [row[:length].sum() for row, length in zip(log_probs, lengths, strict=True)]
            alpha = found["options"].get("length_penalty", 1.0)
            scores = np.array(totals) / (np.array(lengths) + 1.0) ** alpha
            np.testing.assert_allclose(scores, found["scores"], atol=1e-5)


def theta_of(model_dir: ModelDir) -> NestedMap:
    """The weights as tensors."""
    weights = model_dir.read_checkpoint().tensors
    theta = {n.removeprefix("theta/"): tf.constant(w) for n, w in weights.items() if "/" in n}
    return NestedMap.unflatten(theta)
