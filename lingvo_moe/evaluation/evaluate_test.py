"""Tests of a whole evaluation on disk, alone and against another."""

import dataclasses
import random

import pytest

from lingvo_moe.evaluation.evaluate import Baselines, read_hypotheses, write_report
from lingvo_moe.evaluation.report import load_report
from lingvo_moe.evaluation.scores import PairOutput

LINES = {"aa-en": 40, "bb-en": 35, "cc-en": 8, "dd-en": 6}


def make_outputs(error_rate, pairs=tuple(LINES), lines=LINES):
    """The same references for every rate; a share of the words is wrong in the hypotheses."""
    outputs = []
    for pair in pairs:
        rng = random.Random(pair)
        references = [
            " ".join(f"w{rng.randrange(99)}" for _ in range(9)) for _ in range(lines[pair])
        ]
        noise = random.Random(f"{pair} {error_rate}")
        hypotheses = [
            " ".join("x" if noise.random() < error_rate else w for w in line.split())
            for line in references
        ]
        texts = {"sources": references, "hypotheses": hypotheses, "references": references}
        outputs.append(PairOutput(pair=pair, train_examples=10 * lines[pair], **texts))
    return outputs


def evaluate(outputs, directory, **options):
    options = {"model": "m", "checkpoint_step": 5, "split": "test"} | options
    if "baselines" in options:
        pairs = [output.pair for output in outputs]
        options["baselines"] = Baselines.load([options["baselines"]], options["split"], pairs)
    return write_report(outputs, directory, bootstrap_samples=200, **options)


@pytest.fixture
def baselines(tmp_path):
    evaluate(make_outputs(0.5), tmp_path / "base", model="tiny.Bilingual", checkpoint_step=None)
    return tmp_path / "base"


def test_writes_every_file_and_returns_what_it_wrote(tmp_path):
    outputs = make_outputs(0.2)
    report = evaluate(outputs, tmp_path / "new" / "report")
    files = {path.name for path in (tmp_path / "new" / "report").iterdir()}
    assert files == {"report.json", "delta_bleu.png", "index.html", "hypotheses"}
    assert load_report(tmp_path / "new" / "report") == report
    again = read_hypotheses(tmp_path / "new" / "report", "test", "aa-en")
    assert dataclasses.replace(again, train_examples=400) == outputs[0]


def test_against_baselines(tmp_path, baselines):
    report = evaluate(make_outputs(0.1), tmp_path / "report", baselines=baselines)
    assert report.baseline_model == "tiny.Bilingual"
    theirs = {score.pair: score.bleu for score in load_report(baselines).pairs}
    assert {s.pair: s.baseline_bleu for s in report.pairs} == pytest.approx(theirs)
    assert all(score.delta_bleu > 0 and score.p_value < 0.05 for score in report.pairs)
    assert [score.significant for score in report.pairs] == [True, True, False, False]
    theirs = read_hypotheses(baselines, "test", "aa-en").hypotheses[0]
    assert theirs in (tmp_path / "report" / "index.html").read_text("utf-8")


def test_a_pair_is_compared_with_the_first_baselines_that_have_it(tmp_path):
    few, many = tmp_path / "few", tmp_path / "many"
    evaluate(make_outputs(0.5)[:1], few, model="large")
    evaluate(make_outputs(0.7), many, model="small")
    first, *others = make_outputs(0.1)
    pairs = [first.pair, *(output.pair for output in others)]
    found = Baselines.load([few, many], "test", pairs)
    assert found.model == "large; small"
    theirs = {score.pair: score.bleu for score in load_report(many).pairs}
    theirs |= {score.pair: score.bleu for score in load_report(few).pairs}
    report = write_report(
        [first, *others],
        tmp_path / "report",
        model="m",
        checkpoint_step=5,
        split="test",
        baselines=found,
        bootstrap_samples=200,
    )
    assert {s.pair: s.baseline_bleu for s in report.pairs} == pytest.approx(theirs)
    assert report.baseline_model == "large; small"
    assert found.hypotheses(first.pair) == read_hypotheses(few, "test", first.pair).hypotheses
    for home in (few, many):
        with pytest.raises(ValueError, match="another output"):
            found.check({}, home)


def test_a_report_never_overwrites_its_own_baselines(tmp_path, baselines):
    before = (baselines / "report.json").read_bytes()
    with pytest.raises(ValueError, match="another output"):
        evaluate(make_outputs(0.2), baselines, baselines=baselines)
    assert (baselines / "report.json").read_bytes() == before


def test_other_references_are_refused(tmp_path, baselines):
    shorter = make_outputs(0.2, lines=LINES | {"aa-en": 39})
    with pytest.raises(ValueError, match="39 lines"):
        evaluate(shorter, tmp_path / "report", baselines=baselines)
