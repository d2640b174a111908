"""Files and texts of any contents: they are read, or refused in one line that names them."""

import shutil

import numpy as np
import pytest

from lingvo_moe.config.params import override, to_fields
from lingvo_moe.config.registry import get_params
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.records import Records
from lingvo_moe.evaluation.report import format_table, load_report, save_report
from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.system.files import MANIFEST, new_directory
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.fuzz import EXAMPLES, changed_json, check, damaged, st
from lingvo_moe.testing.logdirs import random_logdir
from lingvo_moe.testing.reports import SIX
from lingvo_moe.testing.tiny_world import SHRINK, dataset


def refusal(read):
    """The error for the user that a call ends with; None if there is none."""
    try:
        read()
    except (OSError, ValueError) as error:
        return str(error)
    return None


def assert_is_line_with(message, name):
    """Fails if an error is not one line that holds the name."""
    assert name in message, message
    assert message.isprintable(), message


def assert_reads_or_refuses(file, strategy, read, examples, name=None):
    """Fails unless the file is read, and its damaged forms are read or refused, some refused.

    Args:
        file: it is damaged, and restored in the end.
        strategy: bytes of the file -> damaged bytes.
        read: reads the file.
        examples: how many damaged forms.
        name: that each error holds; None for that of the file.
    """
    content, name, errors = file.read_bytes(), name or file.name, []

    def act(damage):
        file.write_bytes(damage)
        if error := refusal(read):
            assert_is_line_with(error, name)
            errors.append(error)

    try:
        check(examples, strategy(content), act)
    finally:
        file.write_bytes(content)
    assert errors
    assert refusal(read) is None


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "data"
    return shutil.copytree(dataset().directory, path)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "logdir"
    texts = ("model.num_encoder_layers=1", "model.num_decoder_layers=1", "model.moe.every_n=1")
    return random_logdir(path, (*SHRINK, *texts)).path


@EXAMPLES
def test_a_description_of_data(data, examples):
    def read():
        loaded = Dataset.load(data)
        loaded.examples("dev", loaded.pairs[0].name)

    assert_reads_or_refuses(data / "dataset.json", changed_json, read, examples, str(data))


@EXAMPLES
def test_a_shard(data, examples):
    file = min((data / "train").glob("*.records"), key=lambda path: path.stat().st_size)

    def read():
        try:
            return list(Records(file))
        except OSError as error:  # who opens it adds the name
            raise OSError(f"{file.name}: {error}") from error

    assert_reads_or_refuses(file, damaged, read, examples)


@EXAMPLES
def test_a_models_description(logdir, examples):
    file, name = logdir / "model.json", str(logdir)
    assert_reads_or_refuses(file, changed_json, lambda: ModelDir.open(logdir), examples, name)


@EXAMPLES
@pytest.mark.parametrize("name", ["info.json", "state.index", "state.data-00000-of-00001"])
def test_a_checkpoint(logdir, name, examples):
    step = logdir / "checkpoints" / "step_00000001"
    checkpoints = ModelDir.open(logdir).checkpoints

    def read():
        found = checkpoints.read(1)
        assert all(np.asarray(value) is not None for value in found.tensors.values())
        _ = found.best

    strategy = changed_json if "json" in name else damaged
    assert_reads_or_refuses(step / name, strategy, read, examples, step.name)


@EXAMPLES
def test_a_report(tmp_path, examples):
    save_report(SIX, tmp_path)
    file = tmp_path / "report.json"
    assert_reads_or_refuses(
        file, changed_json, lambda: format_table(load_report(tmp_path)), examples
    )


@EXAMPLES
def test_a_routing_record(tmp_path, examples):
    file = tmp_path / "arrays.npz"
    RoutingRecord(
        layers=("encoder/layer_01",),
        pairs=("sw-en", "fr-en"),
        num_experts=np.array([2]),
        **dict.fromkeys(("pair_load", "pair_first", "pair_confidence"), np.ones((1, 2, 2))),
    ).save(file)
    assert_reads_or_refuses(file, damaged, lambda: RoutingRecord.load(file), examples)


@EXAMPLES
def test_a_manifest(tmp_path, examples):
    """With a damaged manifest a directory is replaced or refused, and never read wrongly."""
    with new_directory(tmp_path / "out", "maker") as made:
        (made / "file").write_text("x")

    def read():
        with new_directory(tmp_path / "out", "maker", overwrite=True) as made:
            (made / "file").write_text("x")

    assert_reads_or_refuses(tmp_path / "out" / MANIFEST, changed_json, read, examples, "out")


PARAMS = get_params("tiny.MoE")
PATHS = st.sampled_from([*to_fields(PARAMS), "model.moe", "optimizer", "input.corpora"])
TOKENS = st.sampled_from(
    [
        *"()[]{},=:.'\"-+*01\\\n\0é",
        *("**", "-1", "0.5", "1e999", "None", "True", "x", "lambda", "if", "else", "for", "in"),
        *("Top2", "Einsum", "Adafactor", "Stage", "balance", "capacity_factor", "schedule"),
    ]
)
VALUES = st.lists(TOKENS, max_size=12).map("".join) | st.text(max_size=40)


@EXAMPLES
def test_overrides(examples):
    errors = []

    def act(assignment):
        path, value = assignment
        if error := refusal(lambda: override(PARAMS, [f"{path}={value}"])):
            assert_is_line_with(error, "--set=")
            errors.append(error)

    check(examples, st.tuples(PATHS | st.text(max_size=20), VALUES), act)
    assert errors
