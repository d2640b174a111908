"""What is wrong is found before the weights are read: the logdir here has none."""

import types

import pytest

from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing import tiny_world
from lingvo_moe.tools import translate


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    ModelDir.create(path, "tiny.MoE", tiny_world.SHRINK, tiny_world.dataset())
    return path


@pytest.fixture
def call(logdir, tmp_path, monkeypatch):
    """The tool with flags and arguments; "TMP" in a flag is a directory."""

    def run(arguments=("kara",), **values):
        chosen = dict.fromkeys(("model", "source_language", "input", "output", "beam_size", "step"))
        chosen |= {"logdir": logdir, "to": "en", "n_best": 1, "set": [], "runtime": "local"}
        chosen |= {k: v.replace("TMP", str(tmp_path)) for k, v in values.items()}
        flags = types.SimpleNamespace(**chosen)
        monkeypatch.setattr(translate, "FLAGS", flags)
        monkeypatch.setattr(translate.runtimes, "FLAGS", flags)
        translate.main(["translate", *arguments])

    return run


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"to": "xx"}, "does not translate into 'xx'; it knows .*en"),
        ({"to": ""}, "does not translate into ''"),
        ({"model": "tiny.Mo"}, "is of model 'tiny.MoE', not 'tiny.Mo'"),
        ({"beam_size": "10000"}, "beam_size must be 1 to 64, got 10000"),
        ({"n_best": "65"}, "n_best must be 1 to 64, got 65"),
        ({"output": "TMP"}, "is a directory; give the name of a file in it"),
        ({"output": "TMP/missing/file"}, "missing is not a directory"),
        ({"input": "TMP"}, "Give sentences as arguments or in --input, not both"),
        ({"input": "TMP", "arguments": ()}, "Is a directory"),
        ({"input": "TMP/missing", "arguments": ()}, "No such file or directory"),
        ({"arguments": ["mi", "ka\udcff"]}, "the arguments, line 2: not UTF-8"),
        ({}, "has no checkpoint yet"),
    ],
)
def test_errors(call, values, message):
    values = dict(values)
    arguments = values.pop("arguments", ["kara"])
    with pytest.raises((ValueError, OSError), match=message):
        call(arguments, **values)
