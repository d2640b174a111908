import dataclasses
import json
import shutil

import pytest

from lingvo_moe.config import plugins, registry
from lingvo_moe.config.params import override, to_fields
from lingvo_moe.data.pipeline import TrainInput
from lingvo_moe.jobs.training import train_model, train_step
from lingvo_moe.runtimes.local import Local
from lingvo_moe.system import files
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.logdirs import training_job
from lingvo_moe.testing.tiny_world import SHRINK, dataset, without


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """As training leaves it after its one step, which would take seconds to compile."""
    path = tmp_path_factory.mktemp("made") / "logdir"
    one = ModelDir.create(path, "tiny.MoE", [*SHRINK, "train.max_steps=1"], dataset())
    runtime = Local(one.task, train_step(one.task))
    runtime.initialize(5)
    position = TrainInput(dataset(), one.params.input, one.params.train.seed).state()
    inputs = {f"input/{name}": value for name, value in position.items()}
    one.checkpoints.save(1, runtime.state() | inputs)
    return path


@pytest.fixture
def logdir(made, tmp_path):
    return shutil.copytree(made, tmp_path / "logdir")


def _contents(directory):
    """File -> its bytes and when it was written."""
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def _change(path, **changes):
    fields = json.loads((path / "model.json").read_text())
    (path / "model.json").write_text(json.dumps(fields | changes))


def _register_another_default(monkeypatch):
    params = override(
        registry.get_params("tiny.MoE"),
        ["model.num_heads=8", "model.moe.gating=Switch()", "decoding.beam_size=1"],
    )
    changed = type("Changed", (), {"params": lambda self: params})
    monkeypatch.setitem(registry._registered, "tiny.MoE", changed)


class TestWhatIsRead:
    def test_a_directory_that_is_no_logdir(self, tmp_path):
        with pytest.raises(ValueError, match=r"no model\.json"):
            ModelDir.open(tmp_path)

    def test_params_hold_whatever_the_registry_says_later(self, logdir, monkeypatch):
        params = ModelDir.open(logdir).params
        _register_another_default(monkeypatch)
        assert ModelDir.open(logdir).params == params
        again = ModelDir.for_training(logdir, "tiny.MoE", [], dataset())
        assert again.params == params
        monkeypatch.delitem(registry._registered, "tiny.MoE")
        assert ModelDir.open(logdir).params == params

    @pytest.mark.parametrize(
        ("text", "path"),
        [
            ("model.moe.gating=Switch()", "gives Switch"),
            ("model.num_heads=4", "num_heads=2"),
            ("model.moe=None", "gives None"),
            ("input.pairs=('qna-en',)", "input.pairs"),
        ],
    )
    def test_the_trained_function_may_not(self, logdir, text, path):
        with pytest.raises(ValueError, match=path):
            ModelDir.open(logdir).with_overrides([text])

    @pytest.mark.parametrize("text", ["", "[]", "null", "{", '"text"'])
    def test_a_model_json_that_is_none(self, logdir, text):
        (logdir / "model.json").write_text(text)
        with pytest.raises(ValueError, match=r"model\.json (cannot be read|must hold)"):
            ModelDir.open(logdir)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"format": 99}, "format 99"),
            ({"model": 3}, "'model' must"),
            ({"pairs": "de-en"}, "'pairs' must"),
            ({"seen_pairs": ["../../x-en"]}, "cannot name"),
            ({"tags": {"en": 100_000}}, "is 100000"),
            ({"vocabularies": {}}, "field 'source'"),
            ({"params": {}}, "missing"),
        ],
    )
    def test_a_model_json_of_something_else(self, logdir, changes, message):
        _change(logdir, **changes)
        with pytest.raises(ValueError, match=message):
            ModelDir.open(logdir)

    @pytest.mark.parametrize(("content", "message"), [(b"", "it is empty"), (None, "not the")])
    def test_vocabularies_are_verified(self, logdir, content, message):
        other = (logdir / "source.model").read_bytes()
        (logdir / "target.model").write_bytes(other if content is None else content)
        with pytest.raises(ValueError, match=message):
            ModelDir.open(logdir)


class TestSeenPairs:
    """The pairs with training text."""

    ROUTER = "model.moe.router=ByTask(task='pair')"

    def test_a_router_by_task_has_experts_for_them_alone(self, tmp_path):
        made = ModelDir.create(
            tmp_path, "tiny.MoE", [*SHRINK, self.ROUTER], without("train", "qta-en")
        )
        assert ModelDir.open(tmp_path) == made
        assert made.pairs == ("qna-en", "qnu-en", "qta-en", "qto-en")
        assert made.task.trained_tasks == {"qna-en": 0, "qnu-en": 1, "qto-en": 3}
        assert made.translated_pairs == ("qna-en", "qnu-en", "qto-en")

    def test_those_of_the_model_that_training_starts_from_count(self, tmp_path):
        texts = [*SHRINK, self.ROUTER]
        ModelDir.create(tmp_path / "old", "tiny.MoE", texts, without("train", "qto-en"))
        texts.append(f"init.logdir={tmp_path / 'old'}")
        data = without("train", "qna-en", "qto-en")
        new = ModelDir.for_training(tmp_path / "new", "tiny.MoE", texts, data)
        assert new.task.trained_tasks == {"qna-en": 0, "qnu-en": 1, "qta-en": 2}


class TestGoingOn:
    def test_the_same_params_write_nothing(self, logdir):
        before = _contents(logdir)
        ModelDir.create(logdir, "tiny.MoE", SHRINK, dataset())
        ModelDir.create(logdir, "tiny.MoE", [], dataset())
        assert _contents(logdir) == before

    def test_what_may_change_is_kept(self, logdir):
        texts = ["train.max_steps=9", "decoding.beam_size=2", "model.moe.training.groups=2"]
        texts += ["optimizer.schedule.learning_rate=0.5", "model.moe.training=Einsum()"]
        before = _contents(logdir)
        ModelDir.create(logdir, "tiny.MoE", texts, dataset())
        changed = {p.name for p, now in _contents(logdir).items() if before.get(p) != now}
        assert changed == {"model.json"}
        assert ModelDir.open(logdir).params == override(
            ModelDir.open(logdir).params, ["train.max_steps=9", *texts]
        )
        assert to_fields(ModelDir.open(logdir).params)["train.max_steps"] == "9"

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("model.moe.gating=Switch()", "gives Switch"),
            ("model.dropout_rate=0.3", "gives 0.3"),
            ("train.seed=2", "gives 2"),
            ("train.best_by=DevChrf()", "gives DevChrf"),
            ("input.batch_size=8", "gives 8"),
            ("optimizer=AdamW(schedule=InverseSquareRoot())", "gives AdamW"),
        ],
    )
    def test_what_may_not_change_is_refused_and_changes_nothing(self, logdir, text, value):
        before = _contents(logdir)
        texts = [text, "train.dev_bleu_sentences=9"] if "best_by" in text else [text]
        with pytest.raises(ValueError, match=value):
            train_model(training_job(logdir, *texts))
        assert _contents(logdir) == before

    def test_a_checkpoint_that_does_not_fit_is_found_before_anything_is_written(self, logdir):
        """beta1 gives each weight a slot that the checkpoint lacks."""
        before = _contents(logdir)
        with pytest.raises(ValueError, match="no tensor"):
            train_model(training_job(logdir, "optimizer.beta1=0.9", "train.max_steps=2"))
        assert _contents(logdir) == before

    def test_a_full_disk_leaves_a_finished_model(self, logdir, monkeypatch):
        before = _contents(logdir)

        def full(descriptor):
            raise OSError(122, "Disk quota exceeded")

        monkeypatch.setattr(files.os, "fsync", full)
        with pytest.raises(OSError, match="quota"):
            train_model(training_job(logdir, "train.max_steps=2"))
        assert _contents(logdir) == before


class TestData:
    """A logdir belongs to one dataset."""

    def _assert_refused(self, logdir, changed, message):
        before = _contents(logdir)
        with pytest.raises(ValueError, match=message):
            train_model(training_job(logdir, dataset=changed))
        assert _contents(logdir) == before

    def test_other_sentences_in_files_of_the_same_names(self, logdir):
        changed = dict.fromkeys(dataset().checksums, "0" * 64)
        other = dataclasses.replace(dataset(), checksums=changed)
        self._assert_refused(logdir, other, "not the")

    def test_a_further_corpus_is_known_by_its_contents_and_may_move(self, tmp_path, monkeypatch):
        shutil.copytree(dataset().directory, tmp_path / "mined")
        monkeypatch.chdir(tmp_path)

        def made(*texts):
            texts = [*SHRINK, *(f"input.corpora=(Corpus(name='mined',data='{t}'),)" for t in texts)]
            return ModelDir.create(tmp_path / "logdir", "tiny.MoE", texts, dataset())

        made("mined")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert made("../mined").params.input.corpora[0].data == str(tmp_path / "mined")
        (tmp_path / "mined").rename(tmp_path / "moved")
        with pytest.raises(ValueError, match="mined holds no dataset"):
            made()
        assert made("../moved").params.input.corpora[0].data == str(tmp_path / "moved")
        assert made().params.input.corpora[0].data == str(tmp_path / "moved")
        card = json.loads((tmp_path / "moved" / "dataset.json").read_text())
        card["checksums"] = dict.fromkeys(card["checksums"], "0" * 64)
        (tmp_path / "moved" / "dataset.json").write_text(json.dumps(card))
        with pytest.raises(ValueError, match="not the"):
            made()


def test_a_test_set_may_have_fewer_and_other_pairs(logdir):
    """Those of the model have its numbers; metrics of a batch are by these."""
    model_dir, given = ModelDir.open(logdir), dataset()
    names = [pair.name for pair in given.pairs]
    assert list(model_dir.pairs) == names
    other = dataclasses.replace(given.pairs[0], name="xx-en", index=1)
    some = dataclasses.replace(given.pairs[2], index=0)
    _, found = model_dir.for_test_set(dataclasses.replace(given, pairs=(some, other)))
    assert [(pair.name, pair.index) for pair in found.pairs] == [(names[2], 2)]
    with pytest.raises(ValueError, match=f"xx-en.*{names[0]}"):
        model_dir.for_test_set(dataclasses.replace(given, pairs=(other,)))


def test_a_step_that_it_does_not_have(made):
    with pytest.raises(ValueError, match="step 5"):
        ModelDir.open(made).read_checkpoint(5)
    assert ModelDir.open(made).read_checkpoint(1).step == 1


def test_a_plug_in_whose_source_changed_is_named(tmp_path, fresh_plugins, caplog, capfd):
    source = tmp_path / "mine_of_logdir.py"
    source.write_text(
        "import dataclasses\n"
        "from lingvo_moe.moe.gatings.top_2 import Top2\n"
        "print('a line that is no translation')\n"
        "@dataclasses.dataclass(frozen=True, kw_only=True)\n"
        "class OfLogdir(Top2): pass\n"
    )
    plugins.import_plugins([str(source)])
    assert capfd.readouterr() == ("", "a line that is no translation\n")
    given = tmp_path / "logdir", "tiny.MoE", [*SHRINK, "model.moe.gating=OfLogdir()"], dataset()
    ModelDir.create(*given)
    before = ModelDir.open(given[0]).imports
    assert set(before) == {str(source)}
    assert not caplog.messages
    source.write_text(source.read_text() + "# corrected\n")
    ModelDir.create(*given)  # as a run that resumes
    (message,) = caplog.messages
    assert f"the plug-in {source} has changed since the model was trained" in message
    assert ModelDir.open(given[0]).imports != before
    assert len(caplog.messages) == 1
