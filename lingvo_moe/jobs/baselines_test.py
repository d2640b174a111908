import dataclasses
import os
import signal
import types

import pytest

from lingvo_moe import api
from lingvo_moe.config.params import override
from lingvo_moe.data.dataset import SPLITS, Dataset
from lingvo_moe.data.pipeline import Prefetcher
from lingvo_moe.data.vocabulary import Vocabulary
from lingvo_moe.evaluation.evaluate import Baselines
from lingvo_moe.jobs import baselines
from lingvo_moe.jobs.baselines import train_baselines
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.logdirs import SMALLEST_DENSE, training_job
from lingvo_moe.testing.tiny_world import dataset, without
from lingvo_moe.training.loop import TrainResult

_SMALL = [*SMALLEST_DENSE, "train.max_steps=2"]


def _job(logdir, **fields):
    return training_job(logdir, *_SMALL, model="tiny.Bilingual", **fields)


@pytest.mark.slow
def test_they_resume_and_their_report_serves_as_baseline(tmp_path):
    pairs, lines = ["qna-en", "qta-en"], []
    (tmp_path / "index.html").write_text("mine")
    first = api.train_baselines(
        "tiny.Bilingual",
        dataset(),
        tmp_path,
        pairs=pairs,
        set=_SMALL,
        report=lines.append,
    )
    assert any(line.startswith("[2/2 qta-en] step 2/2") for line in lines)
    lines.clear()
    again = train_baselines([_job(tmp_path, report=lines.append)], pairs)
    assert not any("loss" in line for line in lines)
    assert again == first
    assert [(score.pair, score.test_examples) for score in again.pairs] == [
        ("qna-en", 20),
        ("qta-en", 20),
    ]
    assert (tmp_path / "index.html").read_text() == "mine"
    found = Baselines.load([tmp_path], "test", pairs)
    assert found.by_pair.keys() == {score.pair for score in again.pairs}
    assert len(found.hypotheses("qta-en")) == 20


@pytest.mark.slow
def test_a_signal_ends_all_of_it(tmp_path, monkeypatch):
    next_batch = Prefetcher.next_batch

    def interrupt(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return next_batch(self)

    monkeypatch.setattr(Prefetcher, "next_batch", interrupt)
    with pytest.raises(SystemExit) as end:
        train_baselines([_job(tmp_path)], ["qna-en", "qta-en"])
    assert end.value.code == 143
    assert [path.name for path in tmp_path.glob("*/*")] == ["qna-en"]


MODELS = ("tiny.Bilingual", "tiny.Dense")
BY_BLEU = ("train.best_by=DevBleu()", "train.dev_bleu_sentences=9")


def _several(logdir, *overrides, **fields):
    return [training_job(logdir, *overrides, model=model, **fields) for model in MODELS]


class Pretended(dict):
    """Dev losses by (model, pair), for training and translation that only note their calls.

    Attributes:
        calls: ("train" or "translate", model, pair, runtime) of each.
    """

    def __init__(self):
        super().__init__()
        self.calls = []

    def train(self, model_dir, data, runtime, report):
        del data
        model_dir.save()
        report("trained")
        self._note("train", model_dir, runtime)
        loss = self[model_dir.model, model_dir.path.name]
        return TrainResult(step=9, finished=True, best_step=5, best_loss=loss, signal=None)

    def translator(self, model_dir, runtime):
        self._note("translate", model_dir, runtime)
        text = f"{model_dir.model} {model_dir.path.name}"
        return lambda sources, *_, **__: [[types.SimpleNamespace(text=text)] for _ in sources], 5

    def _note(self, what, model_dir, runtime):
        self.calls.append((what, model_dir.model, model_dir.path.name, runtime))


@pytest.fixture
def pretended(monkeypatch):
    made = Pretended()
    monkeypatch.setattr(baselines, "run_training", made.train)
    monkeypatch.setattr(baselines, "load_translator", made.translator)
    return made


def test_each_pair_gets_the_model_with_the_lowest_dev_loss(tmp_path, pretended):
    for pair, losses in {"qna-en": (2.0, 3.0), "qta-en": (2.5, 2.25), "qto-en": (4, 4)}.items():
        pretended.update({(m, pair): loss for m, loss in zip(MODELS, losses, strict=True)})
    lines, corpus = [], f"Corpus(name='again', data={str(dataset().directory)!r})"
    jobs = [
        dataclasses.replace(
            job, make_runtime=lambda *_, model=job.model: model, report=lines.append
        )
        for job in _several(tmp_path, f"input.corpora=({corpus},)")
    ]
    pairs = ["qna-en", "qta-en", "qto-en"]
    report = train_baselines(jobs, pairs)
    assert all(runtime == model for _, model, _, runtime in pretended.calls)
    assert sorted(os.listdir(tmp_path)) == ["report", "tiny.Bilingual", "tiny.Dense"]
    assert sorted(os.listdir(tmp_path / "tiny.Dense")) == pairs
    assert report.model == "best of tiny.Bilingual, tiny.Dense"
    chosen = {"qna-en": "tiny.Bilingual", "qta-en": "tiny.Dense", "qto-en": "tiny.Bilingual"}
    assert {score.pair: score.model for score in report.pairs} == chosen
    sizes = {pair: 2 * dataset().pair(pair).examples["train"] for pair in pairs}
    assert {score.pair: score.train_examples for score in report.pairs} == sizes
    found = Baselines.load([tmp_path], "test", pairs)
    assert found.by_pair.keys() == {score.pair for score in report.pairs}
    assert {p: found.hypotheses(p)[0] for p in pairs} == {p: f"{chosen[p]} {p}" for p in pairs}
    assert "[tiny.Dense 5/6 qta-en] trained" in lines
    assert (
        "qta-en: tiny.Dense is chosen by dev loss (tiny.Bilingual 2.500, tiny.Dense 2.250)" in lines
    )


def test_several_params_have_names(tmp_path, pretended):
    """A logdir that was made by the name of the registered model is used again."""
    pretended.update({("tiny.Bilingual", "qna-en"): 2.0, ("shorter", "qna-en"): 1.5})
    longer = override(api.params("tiny.Bilingual"), [*SMALLEST_DENSE, "train.max_steps=9"])
    models = {"tiny.Bilingual": longer, "shorter": override(longer, ["train.max_steps=5"])}
    given = {"output": tmp_path, "pairs": ["qna-en"], "set": ["train.log_every=1"]}
    api.train_baselines(
        "tiny.Bilingual", dataset(), **given | {"set": [*SMALLEST_DENSE, "train.max_steps=9"]}
    )
    report = api.train_baselines(models, dataset(), **given)
    assert report.pairs[0].model == "shorter"
    for name, model in models.items():
        made = ModelDir.open(tmp_path / name / "qna-en").params.train
        assert (made.max_steps, made.log_every) == (model.train.max_steps, 1)


def test_a_pair_with_other_params_has_a_runtime_of_its_own(tmp_path, pretended):
    pretended.update({(MODELS[0], pair): 1.0 for pair in ("qna-en", "qta-en", "qto-en")})
    made = []

    def make_runtime(task, step):
        made.append(task.params.label_smoothing)
        return made[-1]

    job = _job(tmp_path, make_runtime=make_runtime)
    smoother = dataclasses.replace(job, overrides=[*job.overrides, "label_smoothing=0.3"])
    train_baselines([smoother], ["qna-en"])
    pretended.calls.clear()
    made.clear()
    train_baselines([job], ["qna-en", "qta-en", "qto-en"])
    pairs = {"qna-en": 0.3, "qta-en": 0.1, "qto-en": 0.1}
    used = [(what, pair, runtime) for what, _, pair, runtime in pretended.calls]
    assert used == [(what, *one) for what in ("train", "translate") for one in pairs.items()]
    assert made == [0.3, 0.1] * 2  # pairs with equal params share a runtime


def test_a_pair_is_trained_alone(tmp_path, pretended):
    pretended.update({(MODELS[0], pair): 1.0 for pair in ("qna-en", "qta-en")})
    job = training_job(tmp_path, model=MODELS[0], make_runtime=lambda *_: MODELS[0])
    for _ in range(2):  # the second call opens the logdirs
        train_baselines([job], ["qna-en", "qta-en"])
    for pair in ("qna-en", "qta-en"):
        params = ModelDir.open(tmp_path / MODELS[0] / pair).params.input
        assert params.pairs == (pair,)
        assert params.mixture(dataset()).examples.keys() == {pair}


def test_pairs_that_are_left_out_are_named(tmp_path):
    others, lines = ("qnu-en", "qta-en", "qto-en"), []
    data = without("train", "qna-en", of=without("test", *others))
    job = _job(tmp_path / "out", dataset=data, report=lines.append)
    with pytest.raises(ValueError, match="No pair"):
        train_baselines([job])
    assert lines == [
        "qna-en: no train lines, skipped",
        *(f"{pair}: no test lines, skipped" for pair in others),
    ]
    nothing = _job(tmp_path / "out", dataset=without("train"))
    with pytest.raises(ValueError, match="no training"):
        train_baselines([nothing])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["..", "a/b"])
def test_a_name_that_cannot_be_a_directory(name, tmp_path):
    job = dataclasses.replace(_job(tmp_path / "out"), model=name)
    with pytest.raises(ValueError, match="cannot name"):
        train_baselines([job], ["qna-en"])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_vocabularies_of_each_pairs_own(tmp_path):
    lines: list[str] = []
    sizes = ("source_vocab_size=310", "target_vocab_size=300", "train.max_steps=1")
    job = training_job(tmp_path, *sizes, model="tiny.Bilingual", report=lines.append)
    pairs = ["qna-en", "qta-en"]
    with pytest.raises(ValueError, match="qna-en: The"):
        train_baselines([job], pairs)  # the vocabulary of the dataset is larger
    report = train_baselines([job], pairs, own_vocabulary=True)
    (data,) = tmp_path.glob("data-*")
    assert sorted(os.listdir(data)) == pairs
    assert len([line for line in lines if "vocabulary of its own" in line]) == 2
    vocabularies = set()
    for score in report.pairs:
        own, home = Dataset.load(data / score.pair), tmp_path / "tiny.Bilingual" / score.pair
        assert [pair.name for pair in own.pairs] == [score.pair]
        for split in SPLITS:  # the text is the same
            texts, expected = (
                sorted(baselines._texts(of, split, score.pair)) for of in (own, dataset())
            )
            assert texts == expected
        assert own.source_vocabulary.size <= 310
        assert (home / "source.model").read_bytes() == (
            data / score.pair / "source.model"
        ).read_bytes()
        vocabularies.add(own.hashes["source"])
        assert score.train_examples == dataset().pair(score.pair).examples["train"]
    assert len(vocabularies) == 2
    lines.clear()
    assert train_baselines([job], pairs, own_vocabulary=True) == report
    assert not any("vocabulary of its own" in line or "loss" in line for line in lines)
    wider = dataclasses.replace(job, overrides=[*job.overrides, "source_vocab_size=320"])
    with pytest.raises(ValueError, match="=310, but"):
        train_baselines([wider], pairs, own_vocabulary=True)
    assert list(tmp_path.glob("data-*")) == [data]


def test_a_report_keeps_the_pairs_that_it_has(tmp_path, pretended):
    pretended.update({(MODELS[0], pair): 1.0 for pair in ("qna-en", "qta-en")})
    job = _job(tmp_path, make_runtime=lambda *_: MODELS[0])
    train_baselines([job], ["qna-en"])
    with pytest.raises(ValueError, match="qna-en, which"):
        train_baselines([job], ["qta-en"])
    found = train_baselines([job], ["qna-en", "qta-en"])
    assert [score.pair for score in found.pairs] == ["qna-en", "qta-en"]


def test_sources_are_trained_on_as_they_are_tested(tmp_path, monkeypatch):
    """A vocabulary for both sides cannot have the normalization of each."""
    monkeypatch.setattr(baselines, "run_training", None)
    rule = property(lambda vocabulary: f"rule{vocabulary.size}")
    monkeypatch.setattr(Vocabulary, "normalization", rule)
    job = training_job(tmp_path / "out", "model.shared_embedding=True", model="tiny.Bilingual")
    with pytest.raises(ValueError, match="--joint_vocab"):
        train_baselines([job], ["qna-en"], own_vocabulary=True)


def test_pairs_with_text_only_in_a_further_corpus_are_trained(tmp_path, pretended):
    pretended[MODELS[0], "qna-en"] = 1.0
    corpus = f"Corpus(name='mined', data={str(dataset().directory)!r})"
    data = without("train", "qna-en", of=without("test", "qnu-en", "qta-en", "qto-en"))
    job = training_job(
        tmp_path,
        f"input.corpora=({corpus},)",
        model=MODELS[0],
        dataset=data,
        make_runtime=lambda *_: MODELS[0],
    )
    assert [score.pair for score in train_baselines([job]).pairs] == ["qna-en"]


@pytest.mark.parametrize(
    ("first", "second", "own"),
    [
        ((), ("target_vocab_size=300",), True),  # losses per piece of other vocabularies
        ((), ("input.target_length=40",), False),  # longer lines are left out
        (BY_BLEU, (*BY_BLEU, "train.dev_bleu_sentences=8"), False),
        ((), BY_BLEU, False),
    ],
)
def test_results_on_dev_that_cannot_be_compared_are_refused(
    tmp_path, pretended, first, second, own
):
    jobs = [_several(tmp_path, *first)[0], _several(tmp_path, *second)[1]]
    with pytest.raises(ValueError, match="compared on"):
        train_baselines(jobs, ["qna-en"], own_vocabulary=own)
    assert not pretended.calls


def test_a_pair_that_there_is_not(tmp_path):
    with pytest.raises(ValueError, match="xx-en"):
        train_baselines([_job(tmp_path / "new")], ["xx-en"])
    assert not (tmp_path / "new").exists()


def test_without_dev_lines_no_model_is_chosen(tmp_path, pretended):
    jobs = _several(tmp_path, dataset=without("dev", "qna-en"))
    with pytest.raises(ValueError, match="no dev"):
        train_baselines(jobs, ["qna-en"])
    assert not pretended.calls
