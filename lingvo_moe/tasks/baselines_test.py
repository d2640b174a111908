import dataclasses
import os
import signal
import types

import pytest

from lingvo_moe import api
from lingvo_moe.data import input_workers
from lingvo_moe.data.pipeline import Prefetcher
from lingvo_moe.evaluation.baselines import Baselines
from lingvo_moe.tasks import baselines, training
from lingvo_moe.tasks.baselines import train_baselines
from lingvo_moe.testing.logdirs import training_job
from lingvo_moe.testing.tiny_world import SHRINK, dataset
from lingvo_moe.training.loop import TrainResult


def _job(logdir, **fields):
    return training_job(logdir, "train.max_steps=2", model="tiny.Bilingual", **fields)


def test_they_resume_and_their_report_serves_as_baseline(tmp_path, monkeypatch):
    pairs, lines, workers = ["qna-en", "qta-en"], [], []

    def packed_by(number, source):
        workers.append(number)
        return input_workers.packed_by(number, source)

    monkeypatch.setattr(training, "packed_by", packed_by)
    (tmp_path / "index.html").write_text("mine")
    first = api.train_baselines(
        "tiny.Bilingual",
        dataset(),
        tmp_path,
        pairs=pairs,
        set=[*SHRINK, "train.max_steps=2"],
        input_workers=1,
        report=lines.append,
    )
    assert any(line.startswith("[2/2 qta-en] step 2/2") for line in lines)
    assert workers == [1, 1]
    lines.clear()
    again = train_baselines([_job(tmp_path, report=lines.append)], pairs)
    assert not any("loss" in line for line in lines)
    assert again == first
    assert [(score.pair, score.test_examples) for score in again.pairs] == [
        ("qna-en", 20),
        ("qta-en", 20),
    ]
    assert (tmp_path / "index.html").read_text() == "mine"
    found = Baselines.load(tmp_path, "test", pairs)
    assert found.report == again
    assert len(found.hypotheses("qta-en")) == 20


def test_what_is_wrong_is_found_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "run_training", None)
    mine = tmp_path / "a" / "report" / "index.html"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    for output, pairs, message in (
        ("a", ["qna-en"], "report is not empty and was not made by lingvo-moe-baselines"),
        ("a/report/index.html", ["qna-en"], "is a file"),
        ("b", ["qna-en", "qna-en"], "repeated: qna-en"),
        ("b", ["xx-en"], "Unknown pair 'xx-en'"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            train_baselines([_job(tmp_path / output)], pairs)
    assert mine.read_text() == "mine"
    assert not (tmp_path / "b").exists()


def test_a_signal_ends_all_of_it(tmp_path, monkeypatch):
    next_batch = Prefetcher.next_batch

    def interrupt(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return next_batch(self)

    monkeypatch.setattr(Prefetcher, "next_batch", interrupt)
    with pytest.raises(SystemExit) as end:
        train_baselines([_job(tmp_path)], ["qna-en", "qta-en"])
    assert end.value.code == 143
    assert [path.name for path in tmp_path.iterdir()] == ["qna-en"]


MODELS = ("tiny.Bilingual", "tiny.Dense")


def _several(logdir, *overrides, **fields):
    return [training_job(logdir, *overrides, model=model, **fields) for model in MODELS]


@pytest.fixture
def pretended(monkeypatch):
    """Training and translation by name: dev losses by (model, pair)."""
    losses = {}

    def train(model_dir, data, runtime, report, input_workers):
        del data, runtime, input_workers
        model_dir.save()
        report("trained")
        loss = losses[model_dir.model, model_dir.path.name]
        return TrainResult(step=9, finished=True, best_step=5, best_loss=loss, signal=None)

    def translator(model_dir, runtime):
        assert runtime == model_dir.model  # the pairs of one model share its runtime
        text = f"{model_dir.model} {model_dir.path.name}"
        return lambda sources, *_, **__: [[types.SimpleNamespace(text=text)] for _ in sources], 5

    monkeypatch.setattr(baselines, "run_training", train)
    monkeypatch.setattr(baselines, "load_translator", translator)
    return losses


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
    assert sorted(os.listdir(tmp_path)) == ["report", "tiny.Bilingual", "tiny.Dense"]
    assert sorted(os.listdir(tmp_path / "tiny.Dense")) == pairs
    assert report.model == "best of tiny.Bilingual, tiny.Dense"
    chosen = {"qna-en": "tiny.Bilingual", "qta-en": "tiny.Dense", "qto-en": "tiny.Bilingual"}
    assert {score.pair: score.model for score in report.pairs} == chosen
    sizes = {pair: 2 * dataset().pair(pair).examples["train"] for pair in pairs}
    assert {score.pair: score.train_examples for score in report.pairs} == sizes
    found = Baselines.load(tmp_path, "test", pairs)
    assert found.report == report
    assert {p: found.hypotheses(p)[0] for p in pairs} == {p: f"{chosen[p]} {p}" for p in pairs}
    assert "[tiny.Dense 2/3 qta-en] trained" in lines
    assert (
        "qta-en: tiny.Dense is chosen by dev loss (tiny.Bilingual 2.500, tiny.Dense 2.250)" in lines
    )


def test_models_among_which_dev_loss_cannot_choose_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "run_training", None)
    short, _ = _several(tmp_path / "a")
    twice = [short, short]
    longer = [short, _several(tmp_path / "a", "input.target_length=40")[1]]
    no_dev = dataclasses.replace(
        dataset(),
        pairs=tuple(
            dataclasses.replace(pair, examples=pair.examples | {"dev": 0})
            for pair in dataset().pairs
        ),
    )
    for jobs, message in (
        (twice, "--model must name a model once; repeated: tiny.Bilingual"),
        (longer, r"--set=input.source_length=48 --set=input.target_length=40\.$"),
        (_several(tmp_path / "a", dataset=no_dev), "no dev lines: qna-en. Choose other pairs"),
    ):
        with pytest.raises(ValueError, match=message):
            train_baselines(jobs, ["qna-en"])
    assert not (tmp_path / "a").exists()
    with pytest.raises(ValueError, match="model is empty; name one or more models"):
        api.train_baselines([], dataset(), tmp_path / "a")
