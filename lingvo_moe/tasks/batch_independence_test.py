"""A translation is the same alone, in any batch and at any padding: beam search and all."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.nn.layer import init_theta
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.tiny_world import SHRINK

SMALLER = (
    *SHRINK,
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "model.moe.every_n=1",
    "model.moe.num_experts=4",
    "decoding.beam_size=3",
    "decoding.n_best=3",
    "decoding.length_ratio=0.5",
    "decoding.length_offset=3",
)
CASES = [
    ("ByToken()", "Top2()"),
    pytest.param("ByToken()", "TopK(k=3)", marks=pytest.mark.slow),
    pytest.param("ByToken()", "Switch()", marks=pytest.mark.slow),
    ("ByToken()", "Balanced()"),
    ("ByTask(task='pair', num_tasks=3)", "Switch()"),
]
TASKS = np.array([0, 1, 2, 0, 2, 1], np.int32)


def sharp_task(router, gating):
    """A task of random weights; its scores differ enough that rounding swaps none."""
    overrides = [*SMALLER, f"model.moe.router={router}", f"model.moe.gating={gating}"]
    task = TranslationTask(override(get_params("tiny.MoE"), overrides), ("a-b", "c-d", "e-f"))
    theta = init_theta(task.weights(), 0)
    theta.decoder.embedding.table *= 2.5
    return task, theta


@pytest.mark.parametrize(("router", "gating"), CASES)
def test_translations_do_not_depend_on_their_batch(router, gating):
    task, theta = sharp_task(router, gating)
    rng = np.random.default_rng(1)
    sentences = [rng.integers(4, 500, length) for length in (9, 1, 5, 12, 2, 7)]

    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec([None] * rank, tf.int32) for rank in (2, 1, 1)],
    )
    def decode(ids, lengths, tasks):
        return task.translate(theta, ids, lengths, tasks)

    def translate(which, padding=0):
        """{sentence: [(ids, score)]} of one batch."""
        lengths = [len(sentences[i]) for i in which]
        ids = np.zeros([len(which), max(lengths) + padding], np.int32)
        for row, i in enumerate(which):
            ids[row, : lengths[row]] = sentences[i]
        output = decode(ids, np.array(lengths, np.int32), TASKS[list(which)])
        return {
            i: [
                (tuple(output.ids[row, n, : output.lengths[row, n]].numpy()), score)
                for n, score in enumerate(output.scores[row].numpy())
            ]
            for row, i in enumerate(which)
        }

    everyone = range(len(sentences))
    together = translate(everyone)
    batches = [[i] for i in everyone] + [[5, 0], [1, 3, 2], list(reversed(everyone))]
    for number, which in enumerate(batches):
        for i, translations in translate(which, padding=4 * (number % 2)).items():
            assert [ids for ids, _ in translations] == [ids for ids, _ in together[i]]
            scores = [score for _, score in translations]
            np.testing.assert_allclose(scores, [s for _, s in together[i]], rtol=1e-4)
    assert len({ids for best in together.values() for ids, _ in best}) > 6
