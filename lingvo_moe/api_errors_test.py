"""Models in forks, paths in the home directory, and collections of pairs."""

import copy
import multiprocessing
import os
import pickle
import signal

import pytest

import lingvo_moe as lm
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving.formats.safetensors import Safetensors
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir


def quiet(line):
    """Reports nothing."""


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    return random_logdir(tmp_path_factory.mktemp("api") / "model", SMALLEST).path


def test_paths_in_the_home_directory(logdir, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    lm.export(logdir, "~/made", Safetensors())
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert lm.load("~/made").logdir.path == tmp_path / "made"
    with pytest.raises(ValueError, match=r"directory must be a path, .* got None"):
        lm.load(None)


@pytest.fixture(
    scope="module", params=["logdir", pytest.param("SavedModel", marks=pytest.mark.slow)]
)
def loaded(request, logdir, tmp_path_factory):
    if request.param == "logdir":
        return lm.load(logdir)
    export = tmp_path_factory.mktemp("api") / "export"
    lm.export(logdir, export)
    return lm.load(export)


def _load(path):
    _loaded.append(lm.load(path))


def _translate():
    return _loaded[-1].translate(["kara"], "en")


_loaded: list = []


class TestOneProcess:
    @pytest.mark.slow
    def test_a_fork_gets_an_error_and_does_not_wait(self, loaded):
        read, write = os.pipe()
        if not (child := os.fork()):
            signal.alarm(60)  # ends it if it waits
            errors = []
            for call in (
                lambda: loaded.translate(["kara"], "en"),
                lambda: loaded.score(["kara"], ["the dog"], "en"),
                lambda: loaded.explain(["kara"], ["the dog"], "en"),
            ):
                try:
                    call()
                except Exception as error:
                    errors.append(str(error))
            os.write(write, "\n".join(errors).encode())
            os._exit(0)
        os.close(write)
        with open(read) as pipe:
            errors = pipe.read().splitlines()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        forked = [error for error in errors if "is a fork of the one that has the model" in error]
        assert len(forked) == (3 if isinstance(loaded, lm.Model) else 2)

    @pytest.mark.slow
    def test_a_fork_that_loads_a_model_gets_an_error_at_its_first_use(self, loaded):
        loaded.translate(["kara"], "en")
        path = str(loaded._loaded_from)
        with multiprocessing.get_context("fork").Pool(1, _load, [path]) as pool:
            with pytest.raises(RuntimeError, match=r'ran TensorFlow, .*get_context\("spawn"\)'):
                pool.apply_async(_translate).get(60)
            with pytest.raises(RuntimeError, match="ran TensorFlow"):
                pool.apply_async(Local, [None]).get(60)

    @pytest.mark.parametrize("deed", [copy.deepcopy, pickle.dumps])
    def test_copies_are_refused(self, loaded, deed):
        with pytest.raises(TypeError, match=r"cannot be copied .* lingvo_moe\.load\('/.*'\), and"):
            deed(loaded)
