import dataclasses
import json
import shutil

import pytest

from lingvo_moe.evaluation.report import save_report
from lingvo_moe.jobs.compare import FILE, Setting, add_runs, compare, compare_table
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.logdirs import SMALLEST
from lingvo_moe.testing.reports import make_report, make_score
from lingvo_moe.testing.tiny_world import dataset
from lingvo_moe.training.summaries import SummaryWriter, read_scalars

_ROW = Setting.parse(
    "top-1: tiny.MoE; model.moe.gating=Switch(); model.moe.training.capacity_factor=0.5"
)
_SHORT = [*SMALLEST, "train.max_steps=4", "train.eval_every=2", "train.log_every=1"]


def _pretend_to_train(job):
    """Writes the events of a run whose dev loss is its seed after 2 steps, and less after 4."""
    if (job.logdir / "events").exists():
        return
    writer = SummaryWriter(job.logdir / "events")
    seed = ModelDir.create(job.logdir, job.model, job.overrides, job.dataset).params.train.seed
    for step, loss in ((2, seed), (4, seed / 2)):
        sides = {f"drop_rate/{side}/layer_00": 0.1 * loss * step for side in ("encoder", "decoder")}
        sides["max_vio/encoder/layer_00"] = float(step)
        train = {"tokens": 70.0, "steps_per_second": 4.0, **sides}
        writer.scalars(step, {"dev/loss": loss, **{f"train/{k}": v for k, v in train.items()}})
    job.report("step 4/4")


def _pretend_to_evaluate(model_dir, data, output, make_runtime, report, split, overwrite):
    output.mkdir(exist_ok=True)
    scores = [make_score(pair.name, 99 - i, 20.0 - i) for i, pair in enumerate(data.pairs)]
    save_report(make_report(*scores, split=split), output)


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_runs_are_made_once_and_averaged(tmp_path, monkeypatch, real):
    lines = []
    if not real:
        monkeypatch.setattr("lingvo_moe.jobs.compare.train_model", _pretend_to_train)
        monkeypatch.setattr("lingvo_moe.jobs.compare.evaluate", _pretend_to_evaluate)

    def runs(seeds, split=None):
        compare([_ROW], dataset(), tmp_path, seeds, _SHORT, Local, lines.append, split=split)
        return json.loads((tmp_path / FILE).read_text())["runs"]

    first = runs([1])
    assert runs([2], "dev")[0] == first[0]
    one, two = runs([1, 2])
    assert len(two["pairs"]) > 1  # also where the translations were scored before
    assert two["split"] == "dev"
    assert real or two["chrf_low"] < two["chrf"] < two["chrf_high"]
    assert runs([2], "test")[1]["split"] == "test"  # other scores replace those of dev
    assert (one["seed"], two["seed"]) == (1, 2)
    assert sum("step 4/4" in line for line in lines) == 2  # each was trained once
    scalars = read_scalars(tmp_path / "top-1" / "2" / "events")
    assert two["dev_loss"] == min(scalars["dev/loss"].values()) != one["dev_loss"]
    drops = [scalars[f"train/drop_rate/{side}/layer_00"][4] for side in ("encoder", "decoder")]
    assert two["drop_rate"] == pytest.approx(100 * sum(drops) / 2)
    assert two["max_vio"] == scalars["train/max_vio/encoder/layer_00"][4]  # of the last tenth
    mean, error = (
        (one["dev_loss"] + two["dev_loss"]) / 2,
        abs(one["dev_loss"] - two["dev_loss"]) / 2,
    )
    assert f"{mean:.3f} ± {error:.3f}" in compare_table([one, two]).to_text()
    shutil.rmtree(tmp_path / "top-1")  # compare.json is enough
    assert runs([1, 2]) == [one, runs([2], "test")[1]]


def test_differences_are_paired_by_seed():
    losses = {("a", 1): 4.0, ("a", 2): 5.0, ("b", 2): 4.5, ("b", 3): 9.0, ("b", 1): 3.7}
    runs = [{"row": row, "seed": seed, "dev_loss": loss} for (row, seed), loss in losses.items()]
    table = compare_table(runs)
    place = table.columns.index("difference to the first row")
    assert [row[place] for row in table.rows] == ["", "-0.400 ± 0.100"]


def test_a_row_has_runs_of_one_setting(tmp_path, monkeypatch):
    made = {"row": "top-1", "seed": 5, "model": "tiny.MoE", "plugins": {"mine.py": "before"}}
    made |= {"set": [*_SHORT, *_ROW.overrides], "data": dataset().sha256}
    monkeypatch.setattr("lingvo_moe.jobs.compare.imported", lambda: ("mine.py",))
    other = {"row": "top-2", "data": "other"}
    for changes in ({"set": made["set"][1:]}, {"model": "tiny.Dense"}, {}, other):
        (tmp_path / FILE).write_text(json.dumps({"runs": [made | changes]}))
        with pytest.raises(ValueError, match=r"'top-.' has a run of seed 5.*Give"):
            compare([_ROW], dataset(), tmp_path, [6], _SHORT, Local, print)
    assert not (tmp_path / "top-1").exists()


def test_an_interrupted_run_goes_on_with_its_own_setting(tmp_path, monkeypatch):
    monkeypatch.setattr("lingvo_moe.jobs.compare.train_model", _pretend_to_train)
    texts = [*_SHORT, *_ROW.overrides, "train.seed=1", "optimizer.schedule.learning_rate=0.7"]
    begun = ModelDir.create(tmp_path / "top-1" / "1", "tiny.MoE", texts, dataset())
    with pytest.raises(ValueError, match=r"learning_rate=0\.7.*in a comparison"):
        compare([_ROW], dataset(), tmp_path, [1], _SHORT, Local, print, split=None)
    same = [*_SHORT, "optimizer.schedule.learning_rate=0.7", "model.remat=True"]
    (run,) = compare([_ROW], dataset(), tmp_path, [1], same, Local, print, split=None)
    assert run["set"] == [*same, *_ROW.overrides]
    assert ModelDir.open(begun.path).params.optimizer.schedule.learning_rate == 0.7


def test_scores_of_two_splits_are_not_averaged(tmp_path):
    made = {"row": "top-1", "seed": 5, "model": "tiny.MoE", "split": "test"}
    made |= {"set": [*_SHORT, *_ROW.overrides], "data": dataset().sha256}
    (tmp_path / FILE).write_text(json.dumps({"runs": [made]}))
    with pytest.raises(ValueError, match=r"scores of test.*--split=test"):
        compare([_ROW], dataset(), tmp_path, [6], _SHORT, Local, print, split="dev")


def test_rows_have_names_of_their_own(tmp_path):
    with pytest.raises(ValueError, match="name"):
        compare([_ROW, _ROW], dataset(), tmp_path, [6], _SHORT, Local, print)


def test_a_run_that_another_process_adds_meanwhile_is_kept(tmp_path, monkeypatch):
    def measure(logdir):
        add_runs(tmp_path / FILE, [{"row": "theirs", "seed": 1, "dev_loss": 3.0}])
        return {"dev_loss": 2.0}

    monkeypatch.setattr("lingvo_moe.jobs.compare.train_model", _pretend_to_train)
    monkeypatch.setattr("lingvo_moe.jobs.compare.measure", measure)
    made = compare([_ROW], dataset(), tmp_path, [1], _SHORT, Local, print, split=None)
    assert {run["row"] for run in made} == {"theirs", "top-1"}


def test_data_without_dev_lines_are_refused_before_training(tmp_path):
    first, *others = dataset().pairs
    pairs = dataclasses.replace(first, examples={"train": 9}), *others
    data = dataclasses.replace(dataset(), pairs=pairs)
    trained = [*_SHORT, f"input.pairs={(first.name,)!r}"]
    with pytest.raises(ValueError, match="no dev lines"):
        compare([_ROW], data, tmp_path, [1], trained, Local, print, split=None)


@pytest.mark.parametrize("text", ["top-1", ": tiny.MoE", "a/b: tiny.MoE"])
def test_a_row_of_another_form_is_refused(text):
    with pytest.raises(ValueError, match="row"):
        Setting.parse(text)
