"""Further scores: spBLEU beside sacreBLEU's, and metrics of plug-ins."""

import dataclasses
import shutil

import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers import tokenizer_spm

from lingvo_moe.evaluation.evaluate import write_report
from lingvo_moe.evaluation.metrics.base import Metric, prepare_metrics
from lingvo_moe.evaluation.metrics.sp_bleu import SpBleu
from lingvo_moe.evaluation.report import format_table, load_report
from lingvo_moe.evaluation.scores import PairOutput
from lingvo_moe.testing.tiny_world import dataset

MODEL = str(dataset().directory / "target.model")
LINES = ["the cat sees a small house .", "we  walk, they run", "早上好 ▁x"]


def output(pair="aa-en"):
    hypotheses = ["the cat saw a house .", "we walk , they run ", "早上 x"]
    return PairOutput(
        pair=pair, train_examples=9, sources=LINES, hypotheses=hypotheses, references=LINES
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exact(Metric):
    """Share of translations that equal their references, in percent."""

    column: str = "exact"

    def prepare(self) -> None:
        """See Metric."""

    def score(self, output: PairOutput) -> float:
        """See Metric."""
        equal = sum(map(str.__eq__, output.hypotheses, output.references))
        return 100 * equal / len(output.references)

    def signature(self) -> str:
        """See Metric."""
        return "exact|v1"


def test_sp_bleu_is_that_of_sacrebleu_with_the_same_model(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    shutil.copy(MODEL, tmp_path / "models" / "flores200sacrebleuspm")
    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    one = output()
    expected = BLEU(tokenize="flores200").corpus_score(one.hypotheses, [one.references]).score
    (metric,) = prepare_metrics([f"SpBleu(model='{MODEL}')"])
    assert 5 < expected < 95
    assert metric.score(one) == expected
    assert expected != BLEU().corpus_score(one.hypotheses, [one.references]).score
    digest = dataset().target_vocabulary.sha256[:12]
    assert metric.signature().startswith("nrefs:1|case:mixed|eff:no|tok:none|")
    assert metric.signature().endswith(f"|spm:{digest}")


def test_what_cannot_be_used_is_refused_in_one_line(tmp_path):
    (tmp_path / "text.model").write_text("no model")
    for texts, message in (
        ([f"SpBleu(model='{tmp_path}/text.model')"], "text.model"),
        (["SpBleu(model=/b.model)"], "write it"),
        (["SpBleu"], "'model'"),
        (["Ter"], "'Ter'"),
        (["SpBleu(path='a')"], "'path'"),
        (["Exact", "Exact()"], "'exact'"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            prepare_metrics(texts)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("column", ["BLEU", "floor"])
def test_a_column_has_a_name_of_its_own(column):
    with pytest.raises(ValueError, match="ΔBLEU"):
        prepare_metrics([Exact(column=column)])


def test_metrics_are_columns_of_every_form_of_the_report(tmp_path):
    outputs = [output(), output("bb-en")]
    metrics = prepare_metrics(["Exact", SpBleu(column="sp", model=MODEL)])
    options = {"model": "m", "checkpoint_step": 5, "split": "test", "metrics": metrics}
    report = write_report(outputs, tmp_path, **options)
    sp = metrics[1].score(outputs[0])
    assert [(s.measures["exact"], s.measures["sp"]) for s in report.pairs] == [(0, sp)] * 2
    assert load_report(tmp_path) == report
    lines = format_table(report).splitlines()
    assert lines[1].split()[-5:-2] == ["chrF++", "exact", "sp"]
    average = next(line for line in lines if line.startswith("all (2)"))
    assert average.split()[-4:-2] == ["0.0", f"{sp:.1f}"]
    page = (tmp_path / "index.html").read_text("utf-8")
    assert page.count("<th>exact</th><th>sp</th>") == 2
    assert "<p>exact <code>exact|v1</code></p>" in page
