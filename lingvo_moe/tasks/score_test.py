"""Scores of given translations: those that beam search adds up, and those of a slow sum."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.inference.scorer import Scorer
from lingvo_moe.jobs.model import Model
from lingvo_moe.nn.layer import EVALUATION, init_theta
from lingvo_moe.nn.special_tokens import BOS
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.translation import TranslationTask
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
        "model.moe.router=ByTask(num_tasks=2)",
        pytest.param("model.moe=None", marks=pytest.mark.slow),
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


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    return random_logdir(tmp_path_factory.mktemp("scored"), SMALLEST)


def _zeros(ids, lengths, targets, target_lengths, tasks):
    return np.zeros(targets.shape, np.float32)


def test_the_source_prefix_is_in_front_as_in_translation(logdir):
    def sources(model_dir, text):
        """The source ids that are scored."""
        seen = []

        def record(ids, *others):
            seen.extend(ids.tolist())
            return _zeros(ids, *others)

        Scorer(model_dir, record)([text], ["the dog"], "en")
        return seen

    other = logdir.with_overrides(["decoding.source_prefix='so '"])
    assert sources(other, "kara mi") == sources(logdir, "so kara mi")
    assert sources(other, "kara mi") != sources(logdir, "kara mi")


@pytest.mark.slow
def test_explain_computes_in_batches(logdir):
    model, given = Model(logdir, Local), (["kara mi", "so", "mi"] * 3, ["the dog", "a", "b c"] * 3)
    whole, sizes, routes = model.explain(*given), [], model._runtime.routes
    model.scorer = dataclasses.replace(model.scorer, batch_tokens=20)
    model._runtime.routes = lambda *batch: sizes.append(batch[0].size) or routes(*batch)
    for one, other in zip(model.explain(*given), whole, strict=True):
        for token, same in zip(one.source + one.target, other.source + other.target, strict=True):
            assert token.text == same.text
            experts, others = ([e for e, _ in t.experts.popitem()[1]] for t in (token, same))
            assert experts == others
    assert max(sizes) <= 20 < sum(sizes)


def test_a_line_that_is_too_long_is_named(logdir):
    with pytest.raises(ValueError, match="Line 2"):
        Scorer(logdir, _zeros)(["kara", "kara " * 4097], ["the", "the"], "en")
