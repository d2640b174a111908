import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from lingvo_moe.config.fields import FROM_DATA
from lingvo_moe.decoding.fitted import Fitted
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.inference.fit import (
    PENALTIES,
    Measured,
    choose,
    dev_sample,
    fit_penalties,
    translate_and_fit,
)
from lingvo_moe.jobs.evaluation import load_translator
from lingvo_moe.jobs.training import train_model
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.logdirs import training_job
from lingvo_moe.testing.tiny_world import dataset

FITTED = ("decoding.length_penalty=FROM_DATA", "decoding.length_ratio=FROM_DATA")


def measured(means, ratios, lines=50, noise=1.0):
    """Lines whose chrF++ and lengths have these means for the first penalties; the last repeat."""
    count, rng = len(PENALTIES), np.random.default_rng(1)
    means, ratios = (np.array([*x, *[x[-1]] * (count - len(x))]) for x in (means, ratios))
    own = rng.normal(size=[count, lines]) * noise
    own -= own.mean(axis=1, keepdims=True)
    references = np.full(lines, 100.0)
    return Measured(means[:, None] + own, ratios[:, None] * references, references)


def test_the_smallest_penalty_that_is_not_worse_and_writes_enough():
    # The fifth is best, the fourth is within noise (0.1 of a standard error of 0.2).
    means, ratios = [10, 15, 18, 19.9, 20.0, 19], [0.5, 0.8, 0.92, 0.97, 1.0, 1.05]
    assert choose({"a": measured(means, ratios)}).penalty == PENALTIES[3]
    # chrF++ rises on, but translations are too long from the fifth on.
    rising = measured([10, 15, 18, 25, 30], [0.5, 0.7, 0.9, 1.0, 1.3])
    assert choose({"a": rising}).penalty == PENALTIES[3]
    # No length is fair: the nearest one.
    assert choose({"a": measured([10, 15, 18], [0.5, 0.7, 1.4])}).penalty == PENALTIES[2]


def test_a_language_has_its_own_penalty_only_beyond_chance():
    # Of ten languages together, 0.6 writes 0.88 of the references, and 0.8 has the best chrF++.
    easy = {str(i): measured([20, 20, 19], [0.95, 1.0, 1.05]) for i in range(9)}
    hard = measured([10, 15, 20], [0.3, 0.6, 0.95])
    assert choose({**easy, "d": hard}) == Fitted(0.8, {"d": 0.9})
    few = hard._replace(
        chrf=hard.chrf[:, :9], lengths=hard.lengths[:, :9], references=hard.references[:9]
    )
    assert choose({**easy, "d": few}).penalties == {}


def test_a_language_without_bounds_has_no_large_penalty():
    fitted = Fitted(3.0, {"own": 2.0}, expected={"de": 1.2})
    penalties = [fitted.numbers(name)["length_penalty"] for name in ("de", "own", "xx")]
    assert penalties == [3.0, 2.0, 1.0]


@dataclasses.dataclass(frozen=True)
class ByExpectedRatio:
    """Writes as many of the reference's ten words as the expected ratio allows, 0.8 for each 1."""

    fitted: Fitted
    penalties: tuple[float, ...] = ()
    decoding: BeamSearchParams = BeamSearchParams()

    def __call__(self, sources, target, source):
        count = round(8 * self.fitted.expected[target])
        return [[SimpleNamespace(text=" word" * count)] * len(self.penalties)] * len(sources)


def test_a_language_that_is_too_short_by_the_largest_penalty_gets_a_larger_bound():
    translator = ByExpectedRatio(Fitted(ratios={"a": 9.0}, expected={"a": 1.2, "b": 1.0, "c": 0.5}))
    sample = {(name, None): (["source"] * 10, [" word" * 10] * 10) for name in "abc"}
    fitted, found = translate_and_fit(translator, sample, True)
    assert fitted.expected == {"a": 1.2, "b": 1.25, "c": 0.625}  # b has 0.8; a quarter at most
    assert fitted.ratios == {"a": 9.0}
    lengths = {name: len(texts[0].split()) for name, texts, _ in found}
    assert lengths == {"a": 10, "b": 10, "c": 5}
    given = dataclasses.replace(translator, decoding=BeamSearchParams(expected_ratio=1.0))
    assert translate_and_fit(given, sample, True)[0].expected == translator.fitted.expected


def test_dev_lines_are_spread_over_a_pair(tmp_path):
    model_dir = ModelDir.create(tmp_path, "tiny.MoE", (), dataset())
    sample = dev_sample(model_dir, dataset(), 8)
    everything = [e.source_text for e in dataset().examples("dev", dataset().pairs[0].name)]
    (sources, references) = next(iter(sample.values()))
    assert len(sources) == len(references) == 8
    places = [everything.index(text) for text in sources[:2]]
    assert places == [0, len(everything) // 2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A logdir that was trained without translations at evaluations, and its lines of progress."""
    logdir, lines = tmp_path_factory.mktemp("trained") / "logdir", []
    job = training_job(logdir, *FITTED, "train.max_steps=2", report=lines.append)
    train_model(job)
    return logdir, lines


@pytest.mark.slow
def test_after_training_the_best_checkpoint_has_penalties(trained):
    logdir, lines = trained
    model_dir = ModelDir.open(logdir)
    assert model_dir.params.decoding.length_penalty is FROM_DATA
    assert model_dir.has_penalties(2)
    assert sum(line.startswith("Length penalty: ") for line in lines) == 1
    translator, _ = load_translator(model_dir, Local(model_dir.task))
    dev = [e for pair in dataset().pairs for e in dataset().examples("dev", pair.name)]
    ratio = sum(len(e.target) for e in dev) / sum(len(e.source) for e in dev)
    # Larger than 1.2 if the translations are too short.
    assert 1.199 < translator.fitted.expected["en"] / ratio < 1.501
    assert translator.fitted == model_dir.at_step(2).fitted
    assert translator.decoding.filled(translator.fitted, "en").length_penalty in PENALTIES
    assert fit_penalties(model_dir, translator, dataset(), 2, lines.append) is translator


@pytest.mark.slow
def test_set_wins_over_what_is_fitted_and_another_beam_has_its_own(trained):
    model_dir = ModelDir.open(trained[0])
    translator, _ = load_translator(
        model_dir.with_overrides(["decoding.length_penalty=3.0"]), Local(model_dir.task)
    )
    assert translator.decoding.filled(translator.fitted, "en").length_penalty == 3.0
    wider = model_dir.with_overrides(["decoding.beam_size=2"])
    assert not wider.has_penalties(2)
    before = model_dir.at_step(2).fitted
    assert wider.at_step(2).fitted == before  # as long as it has none of its own
    assert not model_dir.with_overrides(["decoding.no_repeat_ngram=2"]).has_penalties(2)
    assert model_dir.with_overrides(["decoding.batch_tokens=9"]).has_penalties(2)
    wider.save_penalties(2, Fitted(1.8, {"en": 2.0}))
    assert wider.at_step(2).fitted.numbers("en")["length_penalty"] == 2.0
    assert model_dir.has_penalties(2)
    assert model_dir.at_step(2).fitted == before
