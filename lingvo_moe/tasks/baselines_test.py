import dataclasses
import os
import shutil
import signal
import types

import pytest

from lingvo_moe import api
from lingvo_moe.core.params import override
from lingvo_moe.data import input_workers
from lingvo_moe.data import prepare as stages
from lingvo_moe.data.dataset import SPLITS, Dataset
from lingvo_moe.data.pipeline import Prefetcher
from lingvo_moe.data.vocabulary import Vocabulary
from lingvo_moe.evaluation.baselines import Baselines
from lingvo_moe.tasks import baselines, training
from lingvo_moe.tasks.baselines import train_baselines
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.files import contents
from lingvo_moe.testing.logdirs import training_job
from lingvo_moe.testing.tiny_world import SHRINK, dataset, without
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
    found = Baselines.load([tmp_path], "test", pairs)
    assert found.scores == {score.pair: score for score in again.pairs}
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
    assert [path.name for path in tmp_path.glob("*/*")] == ["qna-en"]


MODELS = ("tiny.Bilingual", "tiny.Dense")


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

    def train(self, model_dir, data, runtime, report, input_workers):
        del data, input_workers
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
    assert found.scores == {score.pair: score for score in report.pairs}
    assert {p: found.hypotheses(p)[0] for p in pairs} == {p: f"{chosen[p]} {p}" for p in pairs}
    assert "[tiny.Dense 2/3 qta-en] trained" in lines
    assert (
        "qta-en: tiny.Dense is chosen by dev loss (tiny.Bilingual 2.500, tiny.Dense 2.250)" in lines
    )


def test_each_pair_gets_the_model_with_the_highest_dev_bleu(tmp_path, pretended):
    pretended.update({(MODELS[0], "qna-en"): -7.5, (MODELS[1], "qna-en"): -8.25})
    by_bleu = ("train.best_by=DevBleu()", "train.dev_bleu_sentences=9")
    lines: list[str] = []
    jobs = [
        dataclasses.replace(
            job, make_runtime=lambda *_, model=job.model: model, report=lines.append
        )
        for job in _several(tmp_path, *by_bleu)
    ]
    report = train_baselines(jobs, ["qna-en"])
    assert report.pairs[0].model == "tiny.Dense"
    assert "qna-en: tiny.Dense is chosen by dev BLEU (tiny.Bilingual 7.5, tiny.Dense 8.2)" in lines


def test_several_params_have_names(tmp_path, pretended):
    """A logdir that was made by the name of the registered model is used again."""
    pretended.update({("tiny.Bilingual", "qna-en"): 2.0, ("shorter", "qna-en"): 1.5})
    longer = override(api.params("tiny.Bilingual"), [*SHRINK, "train.max_steps=9"])
    models = {"tiny.Bilingual": longer, "shorter": override(longer, ["train.max_steps=5"])}
    given = {"output": tmp_path, "pairs": ["qna-en"], "set": ["train.log_every=1"]}
    api.train_baselines(
        "tiny.Bilingual", dataset(), **given | {"set": [*SHRINK, "train.max_steps=9"]}
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


def test_another_model_leaves_the_logdirs_that_there_are(tmp_path, pretended):
    pretended.update({(model, pair): 1.0 for model in MODELS for pair in ("qna-en", "qta-en")})
    jobs = [
        dataclasses.replace(job, make_runtime=lambda *_, model=job.model: model)
        for job in _several(tmp_path)
    ]
    first, second = (tmp_path / model for model in MODELS)
    train_baselines(jobs[:1], ["qna-en", "qta-en"])
    for logdir in (first / "qna-en", first / "qta-en"):
        (logdir / "checkpoints").mkdir()
        (logdir / "checkpoints" / "step").write_text("trained")
    seen = {p: c for p, c in contents(tmp_path).items() if p.parts[0] != "report"}
    for models in (jobs, jobs[:1], jobs[1:]):
        train_baselines(models, ["qna-en", "qta-en"])
        assert sorted(os.listdir(first)) == ["qna-en", "qta-en"]
        assert sorted(os.listdir(second)) == ["qna-en", "qta-en"]
        assert seen.items() <= contents(tmp_path).items()


def test_pairs_that_are_left_out_are_named(tmp_path):
    others, lines = ("qnu-en", "qta-en", "qto-en"), []
    data = without("train", "qna-en", of=without("test", *others))
    job = _job(tmp_path / "out", dataset=data, report=lines.append)
    message = "No pair of qnu-en, qta-en, qto-en has test lines; nothing to evaluate. Choose"
    with pytest.raises(ValueError, match=message):
        train_baselines([job])
    assert lines == [
        "qna-en: no train lines, skipped",
        *(f"{pair}: no test lines, skipped" for pair in others),
    ]
    nothing = _job(tmp_path / "out", dataset=without("train"))
    with pytest.raises(ValueError, match="There are no training examples for any pair in"):
        train_baselines([nothing])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["report", "data-x", "..", "a/b"])
def test_a_name_that_cannot_be_a_directory(name, tmp_path):
    job = dataclasses.replace(_job(tmp_path / "out"), model=name)
    with pytest.raises(ValueError, match=r"'.*' cannot name a bilingual model"):
        train_baselines([job], ["qna-en"])
    assert not (tmp_path / "out").exists()


def test_vocabularies_of_each_pairs_own(tmp_path):
    lines: list[str] = []
    sizes = ("source_vocab_size=310", "target_vocab_size=300", "train.max_steps=1")
    job = training_job(tmp_path, *sizes, model="tiny.Bilingual", report=lines.append)
    pairs = ["qna-en", "qta-en"]
    with pytest.raises(ValueError, match=r"Pass --own_vocabulary, .* or --set=source_vocab_size="):
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
    with pytest.raises(ValueError, match="source_vocab_size=310, but --set gives 320"):
        train_baselines([wider], pairs, own_vocabulary=True)
    corpora = f"input.corpora=(Corpus(name='again',data={str(dataset().directory)!r}),)"
    further = dataclasses.replace(
        job, overrides=[*job.overrides, corpora], logdir=tmp_path / "further"
    )
    with pytest.raises(ValueError, match="has no further corpora"):
        train_baselines([further], pairs, own_vocabulary=True)
    assert list(tmp_path.glob("data-*")) == [data]


def test_a_logdir_keeps_its_kind_of_vocabulary(tmp_path, pretended):
    pretended[MODELS[0], "qto-en"] = 1.0
    for own in (True, False):
        job = _job(tmp_path / str(own), make_runtime=lambda *_: MODELS[0])
        train_baselines([job], ["qto-en"], own_vocabulary=own)
        flag = "--own_vocabulary" if own else "--noown_vocabulary"
        with pytest.raises(ValueError, match=f"was begun with {flag}, .* Pass {flag} again, or"):
            train_baselines([job], ["qto-en"], own_vocabulary=not own)
    shutil.rmtree(next((tmp_path / "True").glob("data-*")))  # nothing is known of its vocabulary
    with pytest.raises(ValueError, match=r"begun with another vocabulary, .* Give the --data that"):
        train_baselines([_job(tmp_path / "True")], ["qto-en"])


def test_a_killed_preparation_is_done_again(tmp_path, pretended, monkeypatch):
    pretended[MODELS[0], "qto-en"] = 1.0
    job = _job(tmp_path, make_runtime=lambda *_: MODELS[0])
    with monkeypatch.context() as patch:
        patch.setattr(stages, "run_stage", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            train_baselines([job], ["qto-en"], own_vocabulary=True)
    assert train_baselines([job], ["qto-en"], own_vocabulary=True).pairs


def _interrupted(*_):
    raise KeyboardInterrupt


def test_a_report_keeps_the_pairs_that_it_has(tmp_path, pretended):
    pretended.update({(MODELS[0], pair): 1.0 for pair in ("qna-en", "qta-en")})
    job = _job(tmp_path, make_runtime=lambda *_: MODELS[0])
    train_baselines([job], ["qna-en"])
    with pytest.raises(ValueError, match=r"report has scores of qna-en, which would be lost\."):
        train_baselines([job], ["qta-en"])
    found = train_baselines([job], ["qna-en", "qta-en"])
    assert [score.pair for score in found.pairs] == ["qna-en", "qta-en"]


def test_pairs_that_cannot_be_trained_are_named_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "run_training", None)
    pairs, by_bleu = ["qna-en", "qta-en"], ("train.best_by=DevBleu()", "train.dev_bleu_sentences=4")

    def job(*overrides, **fields):
        return training_job(tmp_path / "out", *overrides, model="tiny.Bilingual", **fields)

    no_dev = job(*by_bleu, dataset=without("dev", "qta-en"))
    cure = r'of qta-en\. Leave .* --pairs=qna-en, or pass --set="train\.best_by=DevLoss\(\)", which'
    with pytest.raises(ValueError, match=cure):
        train_baselines([no_dev], pairs)
    with pytest.raises(ValueError, match=r"qna-en: no train example fits rows of 2 and 32 tokens"):
        train_baselines([job("input.source_length=2")], pairs)
    with pytest.raises(ValueError, match=r"qta-en: no dev example fits rows of 10 and 32 tokens"):
        train_baselines([job(*by_bleu, "input.source_length=10")], ["qta-en"])
    # Without the tag of the corpus, whose pieces are read too, the shortest line would fit.
    shortest = min(len(example.source) for example in dataset().examples("train", "qna-en"))
    corpus = f"Corpus(name='mined',data={str(dataset().directory)!r},tag='a b c d e f g')"
    tagged = job(
        f"input.corpora=({corpus},)",
        f"input.source_length={shortest}",
        dataset=without("train", "qna-en"),
    )
    with pytest.raises(ValueError, match=rf"qna-en: no train example fits rows of {shortest} and"):
        train_baselines([tagged], ["qna-en"])
    too_few = "SentencePiece could not make a vocabulary"
    monkeypatch.setattr(baselines, "prepare", lambda *_, **__: _raise(ValueError(too_few)))
    with pytest.raises(ValueError, match=f"^qna-en: {too_few} Or leave the pair out, with --pairs"):
        train_baselines([job()], pairs, own_vocabulary=True)


def _raise(error):
    raise error


def test_sources_are_trained_on_as_they_are_tested(tmp_path, monkeypatch):
    """A vocabulary for both sides cannot have the normalization of each."""
    monkeypatch.setattr(baselines, "run_training", None)
    rule = property(lambda vocabulary: f"rule{vocabulary.size}")
    monkeypatch.setattr(Vocabulary, "normalization", rule)
    job = training_job(tmp_path / "out", "model.shared_embedding=True", model="tiny.Bilingual")
    with pytest.raises(ValueError, match=r"rule\d+ and targets rule\d+\. Prepare .* --joint_voca"):
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


def test_results_on_dev_that_cannot_be_compared_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "run_training", None)
    by_bleu = ("train.best_by=DevBleu()", "train.dev_bleu_sentences=9")
    for first, second, message in (
        ((), ("target_vocab_size=400",), r"vocabularies of other sizes, .*best_by=DevChrf\(\)"),
        (by_bleu, (*by_bleu, "train.dev_bleu_sentences=8"), r"=9, 8, .*dev_bleu_sentences=9\.$"),
    ):
        jobs = [_several(tmp_path, *first)[0], _several(tmp_path, *second)[1]]
        with pytest.raises(ValueError, match=message):
            train_baselines(jobs, ["qna-en"], own_vocabulary=True)
    assert not list(tmp_path.iterdir())


def test_models_among_which_dev_loss_cannot_choose_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "run_training", None)
    short, _ = _several(tmp_path / "a")
    twice = [short, short]
    by_bleu = [
        short,
        _several(tmp_path / "a", "train.best_by=DevBleu()", "train.dev_bleu_sentences=9")[1],
    ]
    longer = [short, _several(tmp_path / "a", "input.target_length=40")[1]]
    no_dev = without("dev", *(pair.name for pair in dataset().pairs))
    for jobs, message in (
        (twice, "Each --model must be different; repeated: tiny.Bilingual"),
        (by_bleu, r'best_by=DevLoss\(\), DevBleu\(\), .* Pass --set="train.best_by=DevChrf\(\)"'),
        (longer, r"--set=input.source_length=48 --set=input.target_length=40\.$"),
        (
            _several(tmp_path / "a", dataset=no_dev),
            r"no dev lines, .* of qna-en\. Pass one --model, which t",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            train_baselines(jobs, ["qna-en"])
    assert not (tmp_path / "a").exists()
    one = _several(tmp_path / "a", dataset=without("dev", "qna-en", "qnu-en"))
    message = r"of qna-en, qnu-en\. Leave .* --pairs=qta-en,qto-en, or pass one --model, which"
    with pytest.raises(ValueError, match=message):
        train_baselines(one)
