"""The Python API and the examples, as their users run them."""

import hashlib
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lingvo_moe as lm
from lingvo_moe import api
from lingvo_moe.config import plugins, registry
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.language_tags import OnBothSides
from lingvo_moe.evaluation.report import REPORT_FILE
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing import tiny_world
from lingvo_moe.testing.forks import Fork
from lingvo_moe.testing.logdirs import SMALLEST
from lingvo_moe.testing.plugins import forgotten_plugins

EXAMPLES = Path(__file__).parent.parent / "examples"
SET = dict(text.split("=", 1) for text in (*SMALLEST, "train.max_steps=2"))
SET = {path: eval(value) for path, value in SET.items()}
SENTENCES = ["kara mi", "", "mira so kara"]


def quiet(line):
    del line


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A model trained by `lm.train` with a gating from a file, and its dataset."""
    directory = tmp_path_factory.mktemp("api")
    data = tiny_world.dataset()
    with forgotten_plugins():
        plugins.import_plugins([str(EXAMPLES / "own_gating.py")])
        result = lm.train("own_gating.Tiny", data, directory / "logdir", set=SET, report=quiet)
        assert result.step == 2
        yield directory / "logdir", data


@pytest.fixture(scope="module")
def model(world):
    return lm.load(world[0])


def test_importing_costs_nothing_and_names_are_known():
    script = (
        "import sys, lingvo_moe as lm\n"
        "assert not {'tensorflow', 'numpy', 'absl', 'lingvo_moe.api'} & set(sys.modules)\n"
        "assert {'load', 'train', 'evolve', 'Model', 'Exported'} <= set(dir(lm))\n"
        "lm.nonsense"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "AttributeError: module 'lingvo_moe' has no attribute 'nonsense'" in done.stderr


class TestTranslate:
    def test_texts_and_tokens(self, model):
        free = model.translate(SENTENCES, "en", n_best=2, tokens=True)
        assert {t.text for best in free for t in best}
        options = {"target_prefix": "the one", "source_prefix": "so "}
        found = model.translate(SENTENCES, "en", n_best=2, tokens=True, **options)
        for sentence, best in zip(SENTENCES, found, strict=True):
            for translation in best if sentence else ():
                assert translation.text.startswith("the one")
                pieces = "".join(token.text for token in translation.tokens)
                assert pieces.startswith("▁the▁one")
                assert pieces.endswith("</s>")
                total = sum(token.log_prob for token in translation.tokens)
                penalty = ((5 + len(translation.tokens)) / 6) ** 5.0
                assert translation.score == pytest.approx(total / penalty, rel=1e-4)
                assert "".join(translation.source) == f"▁so {sentence}".replace(" ", "▁")

    def test_scores_of_given_translations(self, model):
        # Only with ids can scores be compared with those of the search, because text may be encoded
        # differently.
        targets = ["the dog", "", "the dog sees two birds"]
        scores = model.score(SENTENCES, targets, "en")
        for target, score in zip(targets, scores, strict=True):
            assert "".join(score.tokens[:-1]).replace("▁", " ").strip() == target
            assert score.tokens[-1] == "</s>"
            assert score.log_prob == pytest.approx(sum(score.token_log_probs))
            assert max(score.token_log_probs) < 0
        assert scores[2] == model.score(SENTENCES[2:], targets[2:], "en")[0]


@pytest.mark.slow
def test_a_logdir_remembers_the_modules_that_it_needs(world, monkeypatch, tmp_path):
    """In a process that has not imported the plug-in, and when its file is gone."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, lingvo_moe as lm\n"
        "from lingvo_moe.config import plugins\n"
        "os.chdir(os.path.dirname(__file__))\n"
        "model = lm.load(sys.argv[1])\n"
        "print(type(model.params.model.moe.gating).__module__, len(plugins.imported()))"
    )
    done = Fork(str(script), str(world[0])).wait()
    assert done.stdout == "own_gating 1\n", done.stderr
    text = (world[0] / "model.json").read_text()
    other = tmp_path / "logdir"
    other.mkdir()
    (other / "model.json").write_text(text.replace("own_gating.py", "gone.py"))
    with pytest.raises(ValueError, match=r"gone\.py: there is no such"):
        lm.load(other)


@pytest.mark.slow
def test_a_logdir_of_a_script_is_opened_by_other_processes(world, tmp_path):
    """The script defines a gating and a model, and runs as `__main__`."""
    script = tmp_path / "mine.py"
    script.write_text(
        (EXAMPLES / "own_gating.py").read_text() + "\n\n"
        "if __name__ == '__main__':\n"
        "    import pathlib, sys\n"
        "    from lingvo_moe.data.dataset import Dataset\n"
        "    from lingvo_moe.tasks.model_dir import ModelDir\n"
        "    logdir, data = map(pathlib.Path, sys.argv[1:])\n"
        "    ModelDir.create(logdir, 'mine.Tiny', [], Dataset.load(data))\n"
        "    print(type(ModelDir.open(logdir).params.model.moe.gating).__module__)\n"
    )
    for _ in range(2):  # the second run opens the logdir of the first
        done = Fork(str(script), str(tmp_path / "logdir"), str(world[1].directory)).wait()
        assert done.stdout == "__main__\n", done.stderr
    fields = json.loads((tmp_path / "logdir" / "model.json").read_text())
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    assert (fields["plugins"], fields["model"]) == ({str(script): digest}, "mine.Tiny")
    other = tmp_path / "other.py"
    other.write_text(
        "import sys, lingvo_moe as lm\n"
        "print(type(lm.load(sys.argv[1]).params.model.moe.gating).__module__)\n"
    )
    done = Fork(str(other), str(tmp_path / "logdir")).wait()
    assert "has no checkpoint yet" in done.stderr
    script.rename(tmp_path / "gone.py")
    done = Fork(str(other), str(tmp_path / "logdir")).wait()
    assert "mine.py: there is no such file" in done.stderr


class TestResume:
    """Training goes on with the params in the logdir, whatever is registered now."""

    @pytest.fixture
    def logdir(self, world, tmp_path):
        return shutil.copytree(world[0], tmp_path / "logdir")

    @pytest.mark.parametrize("gone", [False, True])
    def test_with_another_default_and_without_a_registration(
        self, world, logdir, gone, monkeypatch
    ):
        if gone:
            monkeypatch.delitem(registry._registered, "own_gating.Tiny")
        else:
            dense = lm.params("tiny.Dense")
            changed = type("Changed", (), {"params": lambda self: dense})
            monkeypatch.setitem(registry._registered, "own_gating.Tiny", changed)
        before = (logdir / "model.json").read_text()
        texts = ["model.moe.gating.temperature=0.5"]  # of the logdir's gating, and its value there
        result = lm.train("own_gating.Tiny", world[1], logdir, set=texts, report=quiet)
        assert result.step == 2
        assert (logdir / "model.json").read_text() == before
        with pytest.raises(ValueError, match=r"temperature=0\.5, but --set gives 0\.7; .* resumes"):
            lm.train("own_gating.Tiny", world[1], logdir, set=["model.moe.gating.temperature=0.7"])
        with pytest.raises(ValueError, match=r"is of model 'own_gating\.Tiny', not 'tiny\.MoE'"):
            lm.train("tiny.MoE", world[1], logdir)


def test_every_name_of_the_api_is_one_of_the_package():
    assert all(getattr(lm, name) is getattr(api, name) for name in lm.__all__)


def test_evaluate(world, tmp_path):
    pairs = np.array(["qnu-en"])  # any collection
    report = lm.evaluate(world[0], world[1], pairs=pairs, report=quiet, output=tmp_path / "r")
    assert [score.pair for score in report.pairs] == ["qnu-en"]
    assert (tmp_path / "r" / REPORT_FILE).exists()
    assert re.search(r"^own_gating\.Tiny, step 2, test\n.*^qnu-en ", str(report), re.M | re.S)


@pytest.mark.slow
def test_a_loaded_model_beside_baselines(world, model, tmp_path):
    lm.evaluate(world[0], world[1], pairs=["qnu-en"], report=quiet, output=tmp_path / "r")
    report = lm.evaluate(
        model, world[1].directory, pairs=["qnu-en"], report=quiet, baselines=tmp_path / "r"
    )
    assert [score.delta_bleu for score in report.pairs] == [0.0]  # beside its own report


@pytest.mark.slow
def test_export_of_a_model_with_a_gating_from_outside(world, model, tmp_path):
    assert lm.export(model, tmp_path / "export") == model.step
    exported = lm.load(tmp_path / "export")
    texts = [[best.text for best in n] for n in exported.translate(SENTENCES, to="en")]
    assert texts == [[best.text for best in n] for n in model.translate(SENTENCES, to="en")]
    with pytest.raises(ValueError, match="is of step 2, not 1; leave step out, or give the logdir"):
        lm.export(model, tmp_path / "again", step=1)


class TestTrain:
    def test_params_of_ones_own_and_examples_from_memory(self, tmp_path):
        numbers = runpy.run_path(str(EXAMPLES / "own_data.py"))["examples"]
        params = lm.params("tiny.Dense")
        for path, value in SET.items():
            if not path.startswith("model.moe."):
                params = lm.evolve(params, path, value)
        lines = []
        for _ in range(2):
            splits = {"train": numbers(0, 200), "dev": numbers(200, 203)}
            result = lm.train(params, splits, tmp_path / "m", name="mine", report=lines.append)
            assert result.step == 2
        assert any("the examples given in data are not read" in line for line in lines)
        model = lm.load(tmp_path / "m")
        assert model.params == params
        assert model.logdir.model == "mine"
        other = lm.evolve(params, "model.hidden_dim", 64)
        with pytest.raises(ValueError, match=r"model\.hidden_dim=32, but --set gives 64"):
            lm.train(other, tmp_path / "m" / "data", tmp_path / "m", name="mine", report=quiet)

    @pytest.mark.slow
    def test_a_signal_ends_the_script_too(self, world, tmp_path):
        """After the step in which it arrives, which is saved."""

        def interrupt(line):
            if line.startswith("step 2"):
                os.kill(os.getpid(), signal.SIGTERM)

        more = SET | {"train.log_every": 1, "train.max_steps": 9}
        with pytest.raises(SystemExit) as end:
            lm.train("tiny.MoE", world[1], tmp_path, set=more, report=interrupt)
        assert end.value.code == 143
        assert ModelDir.open(tmp_path).checkpoints.steps() == [2]

    def test_examples_are_prepared_for_tags_on_both_sides(self, tmp_path, monkeypatch):
        monkeypatch.setattr(api, "train_model", lambda job: job)
        numbers = runpy.run_path(str(EXAMPLES / "own_data.py"))["examples"]
        params = lm.evolve(lm.params("tiny.Dense"), "language_tags", OnBothSides())
        splits = {"train": numbers(0, 200), "dev": numbers(200, 203)}
        job = lm.train(params, splits, tmp_path / "m", report=quiet)
        ModelDir.for_training(job.logdir, job.model, job.overrides, job.dataset, job.params)
        tags = {job.dataset.source_vocabulary.tags[name] for name in job.dataset.tags}
        example = job.dataset.examples("train", job.dataset.pairs[0].name)[0]
        assert {example.source[0], example.target[0]} <= tags

    def test_prepare_takes_examples_and_says_what_is_wrong_with_them(self, tmp_path):
        example = ("xx-en", "ein\u2028Satz", "a line")
        for examples, message in (
            ({"valid": [example]}, "no split 'valid'"),
            ([example, ("xx-en", "a\nb", "c")], "Example 2 of train"),
            ([("xx-en", "a")], "three strings"),
            ([("../x-en", "a", "b")], "SRC-TGT"),
        ):
            with pytest.raises(ValueError, match=message):
                lm.prepare(examples, tmp_path / "data", report=quiet)
        assert not (tmp_path / "data").exists()
        with pytest.raises(ValueError, match=r"no field 'joint'\. Did you mean"):
            lm.prepare([example], tmp_path / "data", joint=True)


def test_evolve_checks_types_and_leaves_the_original():
    params = lm.params("tiny.MoE")
    changed = lm.evolve(params, "model.moe.num_experts", 16)
    assert (params.model.moe.num_experts, changed.model.moe.num_experts) == (8, 16)
    assert lm.evolve(params, "label_smoothing", 0).label_smoothing == 0.0
    for path, value, message in (
        ("model.moe.num_expert", 4, "Did you mean 'num_experts'"),
        ("model.moe.num_experts", 0, "num_experts must be >= 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            lm.evolve(params, path, value)
    with pytest.raises(ValueError, match=r"^label_smoothing must be .*, got 2"):
        lm.evolve(params, "label_smoothing", 2.0)


class TestExamples:
    """Each is run as a program; own_gating.py and own_format.py by tools/plugins_test.py."""

    @pytest.fixture
    def run(self, monkeypatch, capsys):
        """Runs an example with arguments and with a model that is smaller; returns its output."""

        def train(*args, set=(), **options):
            return train_in_full(*args, set={**dict(set), **SET}, report=quiet, **options)

        train_in_full = api.train
        monkeypatch.setattr(api, "train", train)

        def run(name, *arguments):
            monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
            return capsys.readouterr().out.splitlines()

        return run

    @pytest.mark.slow
    def test_own_size(self, run, tmp_path):
        numbers = runpy.run_path(str(EXAMPLES / "own_data.py"))["examples"]
        splits = {"train": numbers(0, 500), "dev": numbers(500, 520)}
        data = lm.prepare(splits, tmp_path / "d", joint_vocab=True, report=quiet)
        (line,) = run("own_size.py", data.directory, tmp_path / "m")
        assert re.fullmatch(r"best dev loss \d\.\d{3} at step [12]", line)
        params = lm.load(tmp_path / "m").params
        assert params.model.moe.num_experts == 16
        assert params.model.shared_embedding
        whole = runpy.run_path(str(EXAMPLES / "own_size.py"))["my_params"]()
        assert (whole.model.hidden_dim, whole.train.max_steps) == (1024, 10_000)

    @pytest.mark.slow
    def test_own_data(self, run, tmp_path):
        run("own_data.py", tmp_path / "d", tmp_path / "m")
        dataset = Dataset.load(tmp_path / "d")
        assert dataset.pair("xx-en").examples == {"train": 5000, "dev": 50, "test": 50}
        (first, *_) = dataset.examples("test", "xx-en")
        assert (first.source_text, first.target_text) == ("5 0 5 0", "five zero five zero")
        model = lm.load(tmp_path / "m")
        assert (model.step, model.logdir.pairs) == (2, ("xx-en",))

    @pytest.mark.slow
    def test_translate_and_score(self, world, run):
        lines = run("translate_and_score.py", world[0], "en", *SENTENCES[::2])
        assert lines[0] == SENTENCES[0]
        assert len(lines) == 2 * (1 + 4 * 2)
        assert sum("(log P -" in line for line in lines) == 8


@pytest.mark.slow
def test_the_tour_runs_from_text_to_translations(monkeypatch, tmp_path, capsys):
    """The notebook's cells, one after the other, with fewer steps."""
    plt = pytest.importorskip("matplotlib.pyplot")
    drawn = []
    monkeypatch.setattr(plt, "show", lambda: drawn.append(plt.gca().get_title()))
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for cell in json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).replace("STEPS = 150", "STEPS = 20")
            exec(source.replace("../testdata", f"{EXAMPLES.parent}/testdata"), names)
    assert drawn[0] == "Training loss"
    assert len(names["losses"]) == 10
    assert names["losses"][-1] < names["losses"][0]
    assert len(names["best"]) == 4
    assert len(drawn) == 3


def test_what_load_refuses(tmp_path):
    with pytest.raises(ValueError, match="is no model"):
        lm.load(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ValueError, match="a SavedModel, which has no steps"):
        lm.load(tmp_path, step=3)
