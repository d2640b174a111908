"""Evaluation without a model: errors are found first, results appear when they are complete."""

import dataclasses
import os
import shutil
import types

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from lingvo_moe.data.mixture import Corpus, identity
from lingvo_moe.data.pipeline import InputParams
from lingvo_moe.evaluation.metrics.sp_bleu import SpBleu
from lingvo_moe.evaluation.report import load_report
from lingvo_moe.jobs import evaluation as module
from lingvo_moe.jobs.floor import nearest_targets
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.system.files import MANIFEST
from lingvo_moe.testing.tiny_world import dataset, without
from lingvo_moe.training.train_params import TrainParams

PAIRS = ("qna-en", "qta-en")
SPM = dataset().directory / "target.model"


def _tag(language):
    if language not in ("en", "qna"):
        raise ValueError(f"This model does not translate into {language!r}.")


def _task_id(source, target):
    if source == "qto":
        raise ValueError("This model has no experts for 'qto'.")


class Reader:
    """Loses 1 nat a token on its first batch and 3 on the next, which has foreign sources."""

    loss = 1

    def evaluate(self, batch):
        tokens = batch.target_pair_ids[batch.target_segment_ids > 0]
        counts = np.bincount(tokens, minlength=4)[[dataset().pair(p).index for p in PAIRS]]
        metrics = NestedMap(pair_tokens=counts, pair_nll=counts * self.loss)
        self.loss = 3
        return metrics


MODEL = types.SimpleNamespace(
    model="m",
    params=types.SimpleNamespace(
        input=InputParams(batch_size=64, source_length=48, target_length=32), train=TrainParams()
    ),
    pairs=PAIRS,
    scored_pairs=PAIRS,
    data=dataset().sha256,
    for_test_set=lambda data: (MODEL, data),
    has_penalties=lambda step: True,
    tag=_tag,
    task=types.SimpleNamespace(task_id=_task_id, needs_source_language=False),
    source_languages=["en", "qna", "qta", "qto"],
    seen_pairs=(),
)


@pytest.fixture
def translated(monkeypatch):
    """The pairs that a translator which repeats the source was asked for."""
    asked = []

    def translator(sources, target, source, warn):
        del warn
        asked.append(f"{source}-{target}")
        return [[types.SimpleNamespace(text=f"the {text}")] for text in sources]

    monkeypatch.setattr(module, "load_translator", lambda *_: (translator, 7))
    return asked


def evaluate(output, data=None, report=lambda line: None, baselines=None, **options):
    options["baselines"] = [baselines] if baselines else []
    return module.evaluate(
        MODEL, data or dataset(), output, lambda task, step: Reader(), report, **options
    )


def test_a_report_appears_whole_and_serves_as_baselines_of_the_next(tmp_path, translated):
    report = evaluate(tmp_path / "new" / "first")
    assert load_report(tmp_path / "new" / "first") == report
    assert [score.measures["source_use"] for score in report.pairs] == [2, 2]
    # "the", then the source: in none of the languages' own texts, and mostly like the source.
    assert all(score.measures["off_target"] >= 0.8 for score in report.pairs)
    assert all(score.measures["references_off_target"] <= 0.1 for score in report.pairs)
    assert (report.checkpoint_step, [s.pair for s in report.pairs]) == (7, list(PAIRS))
    names = {path.name for path in (tmp_path / "new" / "first").iterdir()}
    assert names == {"report.json", "delta_bleu.png", "index.html", "hypotheses", MANIFEST}
    again = evaluate(tmp_path / "second", baselines=tmp_path / "new" / "first")
    assert [score.delta_bleu for score in again.pairs] == [0, 0]
    assert sorted(os.listdir(tmp_path)) == ["new", "second"]


def test_pairs_without_training_text_go_through_the_pivot(tmp_path, translated, monkeypatch):
    monkeypatch.setattr(MODEL, "seen_pairs", ("qna-en",))
    data = without("train", "qta-en")
    report = evaluate(tmp_path / "r", data=data, pivot="qna")
    assert translated == ["qna-en", "qta-qna", "qna-en"]
    assert (report.pivot, report.averages["zero-shot"].of) == ("qna", 1)
    hypotheses = (tmp_path / "r" / "hypotheses" / "test" / "qta-en.hyp").read_text()
    assert hypotheses.startswith("the the ")


def test_a_model_is_not_told_a_language_that_it_does_not_know(tmp_path, translated, monkeypatch):
    """Test data may have zero-shot pairs of further languages."""
    monkeypatch.setattr(MODEL, "source_languages", ["en", "qna"])
    evaluate(tmp_path / "r")
    assert translated == ["qna-en", "None-en"]
    monkeypatch.setattr(MODEL.task, "needs_source_language", True)
    evaluate(tmp_path / "needed")
    assert translated[2:] == list(PAIRS)


def test_the_tasks_are_those_of_the_translations_that_are_made(tmp_path, translated, monkeypatch):
    def task_id(source, target):
        if f"{source}-{target}" not in ("qna-en", "qta-qna"):
            raise ValueError(f"This model has no experts for '{source}-{target}'.")

    monkeypatch.setattr(MODEL.task, "task_id", task_id)
    inputs = dataclasses.replace(MODEL.params.input, pairs=("qna-en",))
    monkeypatch.setattr(MODEL.params, "input", inputs)
    message = "Name others"
    for pivot, pairs in ((None, PAIRS), ("en", PAIRS), (None, ("qta-en",))):
        with pytest.raises(ValueError, match=message):
            evaluate(tmp_path / "r", pivot=pivot, pairs=pairs)
    monkeypatch.setattr(MODEL, "scored_pairs", ("qta-en",))
    with pytest.raises(ValueError, match=message):  # it would evaluate nothing
        evaluate(tmp_path / "r")
    assert translated == []
    monkeypatch.setattr(MODEL, "scored_pairs", PAIRS)
    lines = []
    report = evaluate(tmp_path / "skipped", report=lines.append)
    assert [score.pair for score in report.pairs] == ["qna-en"]
    assert "qta-en: the model has no experts for it, skipped" in lines
    assert translated == ["qna-en"]
    translated.clear()
    evaluate(tmp_path / "r", pivot="qna")
    assert translated == ["qna-en", "qta-qna", "qna-en"]


def test_the_column_train_counts_what_the_model_was_trained_on(tmp_path, translated, monkeypatch):
    shutil.copytree(dataset().directory, tmp_path / "mined")
    mined = Corpus(name="mined", data=str(tmp_path / "mined"))
    inputs = dataclasses.replace(MODEL.params.input, pairs=("qna-en",), corpora=(mined,))
    monkeypatch.setattr(MODEL.params, "input", inputs)
    monkeypatch.setattr(MODEL, "data", identity(dataset(), (mined,)))
    lines, sizes = [], [dataset().pair(name).examples["train"] for name in PAIRS]

    def counts():
        report = evaluate(tmp_path / "r", report=lines.append, pivot="qna", overwrite=True)
        scores = {score.pair: score.train_examples for score in report.pairs}
        return [scores[name] for name in PAIRS]

    assert counts() == [2 * sizes[0], 0]
    assert translated == ["qna-en", "qta-qna", "qna-en"]  # the second pair is zero-shot
    assert not any("column" in line for line in lines)
    shutil.rmtree(tmp_path / "mined")
    del translated[:]
    assert counts() == sizes
    assert translated == list(PAIRS)
    (told,) = (line for line in lines if "column" in line)
    assert f"{dataset().directory} only: " in told
    assert str(tmp_path / "mined") in told


@pytest.mark.parametrize(
    ("seen", "expected", "asked"),
    [
        (PAIRS[:1], 0, ["qna-en", "qta-qna", "qna-en"]),  # the second is zero-shot
        ((), None, list(PAIRS)),  # unknown, as of an imported model
    ],
)
def test_of_a_model_of_other_data_it_may_be_known_what_it_was_trained_on(
    tmp_path, translated, monkeypatch, seen, expected, asked
):
    monkeypatch.setattr(MODEL, "data", None)
    monkeypatch.setattr(MODEL, "seen_pairs", seen)
    report = evaluate(tmp_path / "r", without("train", "qta-en"), pivot="qna")
    lines_of_one = dataset().pair("qna-en").examples["train"]
    assert [score.train_examples for score in report.pairs] == [lines_of_one, expected]
    assert translated == asked


def test_the_floor_is_the_score_of_the_nearest_training_sentences(tmp_path, translated):
    report = evaluate(tmp_path / "r", floor=True, metrics=[f"SpBleu(model='{SPM}')"])
    nearest = nearest_targets(dataset(), "test", "qna-en")
    references = [example.target_text for example in dataset().examples("test", "qna-en")]
    scores = {score.pair: score for score in report.pairs}
    assert (
        scores["qna-en"].measures["floor"]
        == BLEU(force=True).corpus_score(nearest, [references]).score
    )
    assert scores["qna-en"].measures["spBLEU"] > 0
    assert report.averages["all"].measures["floor"] > 0
    page = (tmp_path / "r" / "index.html").read_text("utf-8")
    assert f'<td dir="auto">nearest</td><td dir="auto">{nearest[0]}</td>' in page


def test_a_report_is_replaced_only_if_asked_and_only_if_it_is_ours(tmp_path, translated):
    evaluate(tmp_path / "report", pairs=["qna-en"])
    del translated[:]
    with pytest.raises(ValueError, match="pass --overwrite"):
        evaluate(tmp_path / "report")
    (tmp_path / "report" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="that have changed"):
        evaluate(tmp_path / "report", overwrite=True)
    (tmp_path / "report" / "mine.txt").unlink()
    assert translated == []
    assert len(evaluate(tmp_path / "report", overwrite=True).pairs) == 2


def test_what_is_wrong_is_found_before_anything_is_translated(tmp_path, translated):
    evaluate(tmp_path / "base", pairs=["qna-en"])
    file = tmp_path / "file"
    file.write_text("a file of mine")
    del translated[:]
    cases = [
        ({"output": file}, "is a file"),
        ({"pairs": ["qna-fr"]}, "'qna-fr'"),
        ({"pairs": ["qto-en"]}, "'qto'"),
        ({"baselines": tmp_path / "base", "split": "dev"}, "'test', not"),
        ({"baselines": tmp_path / "base", "pairs": ["qta-en"]}, "for qta-en"),
        (
            {"baselines": tmp_path / "base", "output": tmp_path / "base", "overwrite": True},
            "another output",
        ),
        ({"pivot": "xx"}, "'xx'"),
        ({"metrics": ["SpBleu(model='none')"]}, "none"),
    ]
    for options, message in cases:
        output = options.pop("output", tmp_path / "report")
        with pytest.raises((ValueError, OSError), match=message):
            evaluate(output, **options)
    hypotheses = tmp_path / "base" / "hypotheses" / "test" / "qna-en.ref"
    hypotheses.write_text(hypotheses.read_text().replace("the", "an"))
    with pytest.raises(ValueError, match="other references"):
        evaluate(tmp_path / "report", baselines=tmp_path / "base")
    assert translated == []
    assert not (tmp_path / "report").exists()


def test_after_a_metric_that_fails_the_same_command_starts_again(tmp_path, translated, monkeypatch):
    options = {"metrics": [f"SpBleu(model='{SPM}')"]}

    def fail(metric, output):
        raise RuntimeError("out of memory\nof the device")

    expected = evaluate(tmp_path / "expected", **options)
    del translated[:]
    score = SpBleu.score
    monkeypatch.setattr(SpBleu, "score", fail)
    with pytest.raises(RuntimeError, match="out of"):
        evaluate(tmp_path / "report", **options)
    assert os.listdir(tmp_path) == ["expected"]
    monkeypatch.setattr(SpBleu, "score", score)
    assert evaluate(tmp_path / "report", **options) == expected
    assert translated == 2 * list(PAIRS)
    assert sorted(os.listdir(tmp_path)) == ["expected", "report"]


def test_routing_is_recorded_of_the_trained_pairs_that_the_data_have(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "load_translator", lambda *_: None)
    monkeypatch.setattr(module, "eval_batches", lambda *args: asked.append(args[2].pairs) or [])
    rows = dataclasses.replace(MODEL.params.input, pairs=(PAIRS[0], "xx-en"))
    params = types.SimpleNamespace(input=rows)
    model = types.SimpleNamespace(task=None, params=params, for_test_set=lambda data: (model, data))
    with pytest.raises(ValueError, match="no dev lines that fit"):
        module.record_routing(model, dataset(), lambda *_: None)
    assert asked == [(PAIRS[0],)]


def test_tokens_that_training_leaves_out():
    """Of 12 lines 2 with 40 target tokens each are longer than a row of 32; 10 have 5 each."""
    table = [[16, 16, 10, 60, 50], [48, 48, 2, 80, 80]]
    world = dataset()
    pairs = [dataclasses.replace(one, lengths={"train": table}) for one in world.pairs]
    world = dataclasses.replace(world, pairs=tuple(pairs))
    rows = types.SimpleNamespace(source_length=32, target_length=32)
    params = types.SimpleNamespace(input=rows)
    trained = types.SimpleNamespace(params=params, data=world.sha256)
    assert module._left_out(world, "qna-en", trained) == pytest.approx(80 / 130)
    other = types.SimpleNamespace(params=params, data="other")
    assert module._left_out(world, "qna-en", other) is None
    rows.target_length = 40  # the table counts in steps of 16
    assert module._left_out(world, "qna-en", trained) is None
