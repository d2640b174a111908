import numpy as np
import pytest

from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.decoding.request import Request
from lingvo_moe.decoding.sampling import Sampling
from lingvo_moe.jobs.training import train_step
from lingvo_moe.runtimes.local import Local
from lingvo_moe.runtimes.xla import Xla
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.tiny_world import SHRINK

IDS = np.array([[4, 5, 6, 7, 2], [8, 9, 2, 0, 0], [5, 2, 0, 0, 0]], np.int32)
LENGTHS = np.array([5, 3, 2], np.int32)


def runtimes(*overrides):
    task = TranslationTask(override(get_params("tiny.MoE"), [*SHRINK, *overrides]))
    made = Local(task), Xla(task)
    made[0].initialize(0)
    made[1].restore(made[0].state())
    return made


@pytest.mark.parametrize("least", [1, 65])
@pytest.mark.slow
def test_translations_are_those_of_the_executor(least):
    cache = f"decoding.separate_caches_from={least}"
    local, xla = runtimes("decoding.tokens=True", "decoding.beam_size=2", cache)
    wanted = local.translate(IDS, LENGTHS)
    for rows in (slice(None), slice(1, 2)):  # padded to 4 rows; 1 row
        found = xla.translate(IDS[rows], LENGTHS[rows])
        assert found.lengths.shape == wanted.lengths[rows].shape
        np.testing.assert_array_equal(found.lengths, wanted.lengths[rows])
        np.testing.assert_allclose(found.scores, wanted.scores[rows], rtol=1e-5)
        for row, lengths in enumerate(found.lengths):
            for n, length in enumerate(lengths):
                ours, theirs = found.ids[row, n], wanted.ids[rows][row, n]
                np.testing.assert_array_equal(ours[:length], theirs[:length])


@pytest.fixture
def traced(monkeypatch):
    """A list with an entry for each program of beam search that was traced."""
    found, decode = [], TranslationTask.decode

    def counted(self, *arguments):
        found.append(arguments)
        return decode(self, *arguments)

    monkeypatch.setattr(TranslationTask, "decode", counted)
    return found


@pytest.mark.slow
def test_batches_of_nearly_one_shape_share_a_program(traced):
    _, xla = runtimes("model.moe=None")
    for rows in (3, 4):
        ids = np.repeat(IDS[:1], rows, axis=0)
        for more in (0, 2):
            xla.translate(np.pad(ids, [(0, 0), (0, more)]), np.full([rows], 5, np.int32))
    assert len(traced) == 1


@pytest.mark.slow
def test_other_numbers_of_sampling_need_no_new_program(traced):
    local, xla = runtimes("model.moe=None")
    tasks = np.zeros_like(LENGTHS)
    for number, (top_k, top_p) in enumerate([(3, 0.9), (2, 0.4), (0, 1.0), (999, 1.0), (1, 1.0)]):
        sampling = Sampling(temperature=0.5 + number, top_p=top_p, seed=number, top_k=top_k)
        request = Request(BeamSearchParams(sampling=sampling, min_length=number))
        found = xla.translate(IDS, LENGTHS, tasks, request)
        wanted = local.translate(IDS, LENGTHS, tasks, request)
        np.testing.assert_array_equal(found.lengths, wanted.lengths)
        np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-4)
    assert len(traced) == 2  # one of each runtime


@pytest.mark.slow
def test_new_weights_need_no_new_program(traced):
    local, xla = runtimes("model.moe=None")
    before = xla.translate(IDS, LENGTHS).scores
    for runtime in (local, xla):
        runtime.initialize(1)
    found = xla.translate(IDS, LENGTHS)
    assert len(traced) == 1
    assert not np.allclose(found.scores, before)
    np.testing.assert_allclose(found.scores, local.translate(IDS, LENGTHS).scores, rtol=1e-5)


@pytest.mark.slow
def test_training_decodes_with_the_moving_averages_of_weights():
    overrides = (*SHRINK, "model.moe=None", "optimizer.ema_decay=0.9")
    task = TranslationTask(override(get_params("tiny.MoE"), overrides))
    local, xla = (runtime(task, train_step(task)) for runtime in (Local, Xla))
    local.initialize(0)
    before, state = local.translate(IDS, LENGTHS), local.state()
    rng = np.random.default_rng(0)
    averages = {n: rng.normal(0, 0.3, v.shape) for n, v in state.items() if n.endswith("/ema")}
    for runtime in (local, xla):
        runtime.restore(state | averages)
    wanted = local.translate(IDS, LENGTHS)
    assert not np.allclose(wanted.scores, before.scores)
    np.testing.assert_allclose(xla.translate(IDS, LENGTHS).scores, wanted.scores, rtol=1e-5)
