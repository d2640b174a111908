import os
import signal

import pytest

from lingvo_moe import api
from lingvo_moe.data.pipeline import Prefetcher
from lingvo_moe.evaluation.baselines import Baselines
from lingvo_moe.tasks import baselines
from lingvo_moe.tasks.baselines import train_baselines
from lingvo_moe.testing.logdirs import training_job
from lingvo_moe.testing.tiny_world import SHRINK, dataset


def _job(logdir, **fields):
    return training_job(logdir, "train.max_steps=2", model="tiny.Bilingual", **fields)


def test_they_resume_and_their_report_serves_as_baseline(tmp_path):
    pairs, lines = ["qna-en", "qta-en"], []
    (tmp_path / "index.html").write_text("mine")
    first = train_baselines(_job(tmp_path, report=lines.append), pairs)
    assert any(line.startswith("[2/2 qta-en] step 2/2") for line in lines)
    lines.clear()
    again = api.train_baselines(
        "tiny.Bilingual",
        dataset(),
        tmp_path,
        pairs=pairs,
        set=[*SHRINK, "train.max_steps=2"],
        report=lines.append,
    )
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
            train_baselines(_job(tmp_path / output), pairs)
    assert mine.read_text() == "mine"
    assert not (tmp_path / "b").exists()


def test_a_signal_ends_all_of_it(tmp_path, monkeypatch):
    next_batch = Prefetcher.next_batch

    def interrupt(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return next_batch(self)

    monkeypatch.setattr(Prefetcher, "next_batch", interrupt)
    with pytest.raises(SystemExit) as end:
        train_baselines(_job(tmp_path), ["qna-en", "qta-en"])
    assert end.value.code == 143
    assert [path.name for path in tmp_path.iterdir()] == ["qna-en"]
