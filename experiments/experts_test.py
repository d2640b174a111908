import json
import shutil
from pathlib import Path

import pytest

from experiments import experts
from lingvo_moe.evaluation.evaluate import write_hypotheses
from lingvo_moe.evaluation.scores import PairOutput
from lingvo_moe.nn.layer import count_weights
from lingvo_moe.tasks.recipe import registered
from lingvo_moe.tasks.translation import TranslationTask


def _run(row, seed):
    loss, chrf = 3.0 - 0.5 * seed, 20.0 + seed
    made = {"row": row, "seed": seed, "dev_loss": loss, "curve": [[10, 5.0], [20, loss]]}
    pairs = {"en-aa": [10, 1.0, 7.0], "en-bb": [90, 1.0, chrf]}
    return made | {"target_tokens": 2_000_000, "step_seconds": 1.8, "chrf": chrf, "pairs": pairs}


def test_table_and_picture(tmp_path):
    runs = [_run("32 experts", 1) | {"spbleu": {"en-aa": 3.0, "en-bb": 5.0}}]
    runs += [_run("32 experts", 2), _run("dense", 1), _run("other", 1)]
    (tmp_path / "experts_width.json").write_text(json.dumps({"runs": runs}))
    experts.write("width", tmp_path)
    _, *rows = (tmp_path / "experts_width.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["dense", "32 experts"]  # in the study's order
    assert rows[1].endswith(
        ",4.00,1.2,1.3,1.4"
    )  # from 5 to a mean of 2.25 between 1M and 2M tokens
    for name in ("experts_width_languages.png", "experts_hours.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    axes = experts.draw_curves({"32 experts": runs[:2]}).axes
    late = [{**one, "curve": one["curve"][1:]} for one in runs[:1]]
    (tmp_path / "experts_width.json").write_text(json.dumps({"runs": late}))
    experts.write("width", tmp_path)
    assert (tmp_path / "experts_width.csv").read_text().endswith(",< 2.0,< 2.0,< 2.0\n")
    tokens, hours = (one.lines[0].get_xydata().tolist() for one in axes)
    assert tokens == [[1, 5.0], [2, 2.25]]  # means of both seeds
    assert hours == [[0.005, 5.0], [0.01, 2.25]]
    losses, scores = experts.draw_hours({"width": {"32 experts": runs[:2]}}).axes
    ends = [one.lines[0].get_xydata().tolist() for one in (losses, scores)]
    assert ends == [[[0.01, 2.25]], [[0.01, 21.5]]]
    chrf, _ = experts.draw_languages({"32 experts": runs[:2]}, {}).axes
    assert chrf.lines[0].get_ydata().tolist() == [14.25, 14.25]
    gains = experts.draw_languages({"dense": runs[2:3]}, {"en-bb": [90, 0.4, 5.0]}).axes
    # of the pair with a baseline: 21 - 5 and 1.0 - 0.4
    assert [axes.lines[0].get_ydata().tolist() for axes in gains] == [[16.0], [0.6]]


def test_gains_by_hand():
    scores = {"en-aa": (10, 1.0, 5.0), "en-bb": (90, 0.5, 10.0), "en-cc": (50, 0.0, 6.0)}
    bilingual = {pair: (*numbers, f"for {pair}") for pair, numbers in scores.items()}
    runs = {"dense": [_run("dense", 1)], "32 experts": [_run("32 experts", n) for n in (1, 3)]}
    for run in (*runs["dense"], *runs["32 experts"]):
        run["pairs"]["en-cc"] = [50, 1.0, 8.0]
    table = experts.gains_table(runs, bilingual)
    assert table.columns[4:-1:2] == ["ΔchrF++, dense", "ΔchrF++, 32 experts"]
    rows = {row[0]: row[1:4] + row[4:-1:2] for row in table.rows}
    # chrF++ 7, 21 and 8 of dense: a mean of 12; of the others 21 and 23 instead of 21
    assert rows["all"] == ["50", "7.0", "0.5", "+5.0", "+5.3"]
    assert rows["middle third"] == rows["en-cc"] == ["50", "6.0", "0.0", "+2.0", "+2.0"]
    assert rows["en-bb"] == ["90", "10.0", "0.5", "+11.0", "+12.0"]
    assert [row[-1] for row in table.rows[-3:]] == ["for en-bb", "for en-cc", "for en-aa"]
    assert list(rows)[-3:] == ["en-bb", "en-cc", "en-aa"]  # from most to least train lines


def test_spbleu(tmp_path):
    logdir = tmp_path / "dense/1"
    model = Path(__file__).parents[1] / "testdata/huggingface/m2m100/sentencepiece.bpe.model"
    for pair, hypothesis in (("en-aa", "one two three four"), ("en-bb", "one two three")):
        output = PairOutput(
            pair=pair,
            train_examples=1,
            sources=["x"],
            hypotheses=[hypothesis],
            references=["one two three four"],
        )
        write_hypotheses(logdir / "report", "test", output)
    shutil.copy(model, logdir / "target.model")
    run = _run("dense", 1) | {"split": "test"}
    found = experts.with_spbleu(run, tmp_path)["spbleu"]
    assert found["en-aa"] == 100 > found["en-bb"] > 0
    assert experts.with_spbleu(run, tmp_path / "other") == run  # without its report


@pytest.mark.parametrize("study", experts.STUDIES)
def test_rows(study):
    """All params exist; the deepest dense model has as many weights as the experts."""
    common, rows = experts.STUDIES[study]
    assert "," not in "".join(rows)  # it separates the names in --rows
    weights = {}
    for row, text in rows.items():
        model, *texts = text.split("; ")
        sizes = [f"{side}_vocab_size=16000" for side in ("source", "target")]
        task = TranslationTask(registered(model, [*experts.COMMON, *common, *texts, *sizes]))
        weights[row] = count_weights(task.weights()) / 1e6
    if study == "depth":
        assert weights["dense 15 + 15 layers"] == pytest.approx(weights["32 experts"], rel=0.05)
