"""Scores of given translations: those that beam search adds up, and those of a slow sum."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.core.layer import EVALUATION, init_theta
from lingvo_moe.core.params import override
from lingvo_moe.core.registry import get_params
from lingvo_moe.core.tokens import BOS
from lingvo_moe.layers.tokens import Tokens
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks import scorer
from lingvo_moe.tasks.model import Model
from lingvo_moe.tasks.scorer import Scorer
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.tasks.translator import max_pieces
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir
from lingvo_moe.testing.tiny_world import SHRINK

PIECES = 50
SOURCE = tf.constant([[4, 9, 8, 7, 2, 0], [5, 6, 2, 0, 0, 0], [4, 11, 12, 13, 14, 2]])
LENGTHS = tf.constant([5, 3, 6])
TASKS = tf.constant([0, 1, 0])


def _task(*overrides):
    decoding = ("decoding.length_ratio=0.5", "decoding.length_offset=3", "decoding.n_best=3")
    params = override(get_params("tiny.MoE"), [*SHRINK, *decoding, *overrides])
    task = TranslationTask(params, ("de-en", "fr-en"), PIECES)
    # Larger weights than at the start of training, so that tokens differ in probability.
    return task, init_theta(task.weights(), 3).map(lambda w: 3.0 * w)


@pytest.mark.parametrize(
    "override",
    [
        "model.moe.num_experts=4",
        "model.moe.router=ByTask(num_tasks=2)",
        "model.moe.gating=TopK(k=3)",
        "model.moe=None",
    ],
)
def test_equals_what_beam_search_adds_up(override):
    task, theta = _task(override)
    found = task.translate(theta, SOURCE, LENGTHS, TASKS)
    for n in range(3):
        ids, lengths = found.ids[:, n], found.lengths[:, n]
        scores = tf.reduce_sum(task.score(theta, SOURCE, LENGTHS, ids, lengths, TASKS), axis=1)
        penalty = ((5.0 + tf.cast(lengths, tf.float32)) / 6.0) ** 0.6
        np.testing.assert_allclose(scores / penalty, found.scores[:, n], rtol=1e-4)


def test_equals_a_sum_row_by_row_without_padding():
    task, theta = _task()
    targets, lengths = [[20, 21, 2], [22, 2], [23, 24, 25, 26, 2]], [3, 2, 5]
    padded = tf.ragged.constant(targets, dtype=tf.int32).to_tensor()
    scores = task.score(theta, SOURCE, LENGTHS, padded, tf.constant(lengths))
    for row, target in enumerate(targets):
        source = SOURCE[row : row + 1, : LENGTHS[row]]
        inputs = tf.constant([[BOS, *target[:-1]]])
        sides = (Tokens(ids, tf.ones_like(ids), None) for ids in (source, inputs))
        output = task.transformer.fprop(theta, *sides, EVALUATION).outputs
        log_probs = tf.nn.log_softmax(output[0, :, :PIECES]).numpy()
        expected = [log_probs[place, token] for place, token in enumerate(target)]
        np.testing.assert_allclose(scores[row, : lengths[row]], expected, atol=1e-4)
        assert not np.any(scores[row, lengths[row] :])


def test_the_source_prefix_is_in_front_as_in_translation(tmp_path):
    logdir = random_logdir(tmp_path, SMALLEST)
    plain = Model(logdir, Local)
    other = Model(logdir.with_overrides(["decoding.source_prefix='so '"]), Local)
    for call in ("translate", "score", "explain"):
        targets = () if call == "translate" else (["the dog"],)
        found = getattr(other, call)(["kara mi"], *targets)
        assert found == getattr(plain, call)(["so kara mi"], *targets)
        assert found != getattr(plain, call)(["kara mi"], *targets)


def test_a_sentence_that_is_too_long_is_refused_before_anything_is_computed(tmp_path, monkeypatch):
    logdir = random_logdir(tmp_path, SMALLEST)

    def never(*batch):
        raise AssertionError("nothing may be computed")

    long = "kara " * 4097  # a token or more each
    for side, texts in (("source", [long, "the"]), ("target", ["kara", long])):
        message = rf"^Line 2: the {side} has \d+,\d+ tokens, and at most 4,096 can be scored\. Sp"
        pairs = [("kara", "the"), tuple(texts)]
        with pytest.raises(ValueError, match=message):
            Scorer(logdir, never)(*zip(*pairs, strict=True), "en")
        with pytest.raises(ValueError, match=message):
            list(Scorer(logdir, never).stream(pairs, "en"))
    # Line 3 is the first of the second block.
    monkeypatch.setattr(scorer, "BLOCK", 2)
    model = Model(logdir, Local)
    with pytest.raises(ValueError, match=r"^Line 3: the source"):
        list(model.scorer.stream([("kara", "the"), ("mi", "a"), (long, "the")], "en"))
    # What the model reads of a sentence to translate can be scored in any case.
    monkeypatch.setattr(scorer, "MAX_TOKENS", 0)
    room = max_pieces(logdir.params)
    (pieces,) = logdir.vocabulary("source").encode([long])
    text = logdir.vocabulary("source").decode([pieces[:room]])[0]
    assert len(logdir.vocabulary("source").encode([text])[0]) <= room
    assert model.score([text], ["the"], "en")
    with pytest.raises(ValueError, match=f"at most {room} can be scored"):
        model.score([text], ["the " * (room + 1)], "en")
