import dataclasses
import functools
import os

import pytest

from lingvo_moe.config import plugins
from lingvo_moe.data import prepare_pair
from lingvo_moe.data.prepare import PrepareParams, format_dataset, prepare, prepare_synthetic
from lingvo_moe.data.synthetic import SyntheticCorpus
from lingvo_moe.data.vocabulary import EOS
from lingvo_moe.system import lock
from lingvo_moe.testing.files import contents
from lingvo_moe.testing.interrupted import interrupt

PARAMS = PrepareParams(source_vocab_size=320, target_vocab_size=310)


def _write_corpus(directory):
    lines = {
        "train/de-en.de": ["die Katze", "der Hund", "die Katze", "", "ein Haus", "zwei Häuser"],
        "train/de-en.en": ["the cat", "the dog", "the cat", "nothing", "a house", "two houses"],
        "train/eo-en.eo": [f"kato {i}" for i in range(9)],
        "train/eo-en.en": [f"cat {i}" for i in range(9)],
        "dev/de-en.de": ["der Vogel"],
        "dev/de-en.en": ["the bird"],
        "test/de-en.de": ["ein Haus", "eine Maus"],
        "test/de-en.en": ["one house", "the dog"],
    }
    for name, texts in lines.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return directory


@pytest.fixture
def corpus(tmp_path):
    return _write_corpus(tmp_path / "corpus")


def test_counts_shards_and_checks(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_pair, "_BLOCK_LINES", 4)
    lines = []
    dataset = prepare(corpus, tmp_path / "data", PARAMS, report=lines.append)
    de, eo = dataset.pairs
    assert (de.name, de.index, de.examples) == ("de-en", 0, {"train": 3, "dev": 1, "test": 2})
    # Six lines, less one repeated, one empty, and "ein Haus", which is in test.
    assert dataset.checks["de-en"] == {
        "empty": 1,
        "damaged": 0,
        "duplicates": 1,
        "held_out_in_train": 1,
        "targets_in_train": 1,  # "the dog"
        "targets_changed": 0,
        "too_long": 0,
    }
    assert (eo.examples, list(eo.shards["train"].values())) == ({"train": 9}, [4, 4, 1])
    assert [len(dataset.records(shard)) for shard in eo.shards["train"]] == [4, 4, 1]
    assert lines == [
        "training vocabularies on 12 sentence pairs",
        "de-en: 3 training examples",
        "eo-en: 9 training examples",
        "warning: targets of dev and test that are also in train: 1 of 3, so scores may be too "
        "high. --set=held_out_targets=True leaves such lines out of train.",
    ]


def test_examples_are_tagged_and_end(corpus, tmp_path):
    dataset = prepare(corpus, tmp_path / "data", PARAMS)
    first = dataset.examples("train", "de-en")[0]
    assert (first.source[0], first.source[-1], first.target[-1]) == (dataset.tags["en"], EOS, EOS)
    assert (first.source_text, first.target_text) == ("", "")
    assert [e.target_text for e in dataset.examples("test", "de-en")] == ["one house", "the dog"]
    header, _, eo, de, sizes = format_dataset(dataset).splitlines()
    names = "pair train dev test empty damaged duplicates held_out_in_train"
    names += " targets_in_train targets_changed too_long"
    assert header.split() == names.split()
    assert eo.split() == ["eo-en", "9", *"000000000"]  # largest first
    assert de.split() == ["de-en", "3", "1", "2", "1", "0", "1", "1", "1", "0", "0"]
    assert sizes.startswith(f"source vocabulary {dataset.source_vocabulary.size}, target")


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_vocabulary_that_is_too_small_is_named_by_its_flag(side, corpus, tmp_path):
    file = corpus / "train" / ("de-en.de" if side == "source" else "de-en.en")
    letters = "".join(map(chr, range(0x410, 0x450)))  # 64 letters, and 256 pieces are bytes
    file.write_text(f"{letters}\n" + file.read_text("utf-8"), encoding="utf-8")
    other = corpus / "train" / ("de-en.en" if side == "source" else "de-en.de")
    other.write_text("a b\n" + other.read_text("utf-8"), encoding="utf-8")
    params = dataclasses.replace(PARAMS, character_coverage=1.0)
    with pytest.raises(ValueError, match=f"{side}_vocab_size"):
        prepare(corpus, tmp_path / "data", params)


def test_tags_on_both_sides_need_one_vocabulary(corpus, tmp_path):
    params = dataclasses.replace(PARAMS, tags_on_both_sides=True)
    for make in (functools.partial(prepare, corpus), prepare_synthetic):
        with pytest.raises(ValueError, match="joint_vocab"):
            make(tmp_path / "data", params)
    assert os.listdir(tmp_path) == ["corpus"]
    separate = prepare(corpus, tmp_path / "separate", PARAMS).directory
    with pytest.raises(ValueError, match="has two"):
        prepare(corpus, tmp_path / "data", dataclasses.replace(params, extend=str(separate)))
    joint = prepare(corpus, tmp_path / "joint", PrepareParams(joint_vocab=True)).directory
    params = dataclasses.replace(params, extend=str(joint))
    lines: list[str] = []
    dataset = prepare(corpus, tmp_path / "data", params, report=lines.append)
    warning = next(line for line in lines if " has no tag for " in line)
    assert "joint has no tag for de, eo; new tags are added to the vocabulary. It has" in warning
    example, tags = dataset.examples("train", "de-en")[0], dataset.source_vocabulary.tags
    assert (example.source[0], example.target[0]) == (tags["de"], tags["en"])
    assert dataset.target_vocabulary.tags == tags


@pytest.mark.parametrize(
    ("normalization", "changed"), [("identity", 0), ("nfc", 0), ("nmt_nfkc", 2)]
)
def test_targets_that_a_model_cannot_write_are_counted(corpus, tmp_path, normalization, changed):
    texts = ["你好，世界！", "½ cup", "plain\xa0 e\u0301 "]
    for side in ("zh", "en"):
        (corpus / f"test/zh-en.{side}").write_text("\n".join(texts), encoding="utf-8")
        (corpus / f"train/zh-en.{side}").write_text("a\nb\n", encoding="utf-8")
    lines = []
    params = dataclasses.replace(PARAMS, target_normalization=normalization)
    dataset = prepare(corpus, tmp_path / "data", params, report=lines.append)
    assert dataset.checks["zh-en"]["targets_changed"] == changed
    said = f"cannot write {changed} targets of dev and test exactly"
    warnings = [line for line in lines if said in line]
    assert len(warnings) == (changed > 0)


def test_languages_with_accents_apart_in_dev(corpus, tmp_path):
    for split, text in {"train": "\xe9", "dev": "e\u0301", "test": "\xe9"}.items():
        for side in ("de", "xx"):
            lines = [f"{text} {split} {i}\n" for i in range(10)]
            (corpus / f"{split}/de-xx.{side}").write_text("".join(lines), encoding="utf-8")
    said = []
    dataset = prepare(corpus, tmp_path / "data", PARAMS, report=said.append)
    assert dataset.decomposed == ["xx"]
    (line,) = [line for line in said if "form" in line]
    assert line.endswith("on test")  # dev's form can be written


def test_too_long_training_examples_are_left_out(corpus, tmp_path):
    params = PrepareParams(source_vocab_size=320, target_vocab_size=310, max_length=9)
    dataset = prepare(corpus, tmp_path / "data", params)
    lengths = [max(len(e.source), len(e.target)) for e in dataset.examples("train", "de-en")]
    assert all(length <= 9 for length in lengths)
    assert len(lengths) + dataset.checks["de-en"]["too_long"] == 3
    assert dataset.checks["de-en"]["too_long"] > 0
    assert dataset.pair("de-en").examples["test"] == 2
    # The table has all three lines, in pieces with a tag and the end.
    (cell,) = dataset.pair("de-en").lengths["train"]
    assert cell[:3] == [16, 16, 3]
    assert cell[4] > sum(len(e.target) for e in dataset.examples("train", "de-en"))


def test_output_is_not_overwritten_unasked(corpus, tmp_path):
    output = tmp_path / "data"
    with pytest.raises(ValueError, match="processes=-1"):
        prepare(corpus, output, PARAMS, processes=-1)
    prepare(corpus, output, PARAMS)
    with pytest.raises(ValueError, match="--overwrite"):
        prepare(corpus, output, PARAMS)
    (output / "notes").write_text("mine")
    with pytest.raises(ValueError, match="did not make"):
        prepare(corpus, output, PARAMS, overwrite=True)
    (output / "notes").unlink()
    dataset = prepare(corpus, output, dataclasses.replace(PARAMS, max_length=9), overwrite=True)
    assert dataset.checks["de-en"]["too_long"] > 0


@pytest.mark.parametrize("output", [".", "link/data"])
def test_the_corpus_is_never_part_of_the_output(corpus, tmp_path, output):
    (tmp_path / "link").symlink_to(corpus)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="outside"):
        prepare(corpus, tmp_path / output, PARAMS, overwrite=True)
    assert contents(tmp_path) == before


def test_ctrl_c_keeps_the_finished_pieces(corpus, tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    lines = []
    prepare(corpus, tmp_path / "whole", PARAMS)
    with monkeypatch.context() as patched:
        patched.setattr("lingvo_moe.data.prepare_pair.write_records", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(corpus, tmp_path / "data", PARAMS)
    assert sorted(os.listdir(tmp_path)) == ["corpus", "data.parts", "whole"]
    with pytest.raises(ValueError, match="max_length=384"):
        prepare(corpus, tmp_path / "data", dataclasses.replace(PARAMS, max_length=9))
    monkeypatch.setattr("lingvo_moe.data.stages.train_vocabulary", interrupted)  # not again
    prepare(corpus, tmp_path / "data", PARAMS, report=lines.append)
    assert "going on from the finished pieces" in lines[0]
    assert contents(tmp_path / "data") == contents(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["corpus", "data", "whole"]


def test_a_changed_plugin_is_other_work(corpus, tmp_path, monkeypatch, fresh_plugins):
    plugin = tmp_path / "own_rule_of_prepare_test.py"
    plugin.write_text("RULE = 1\n")
    plugins.import_plugins([str(plugin)])
    interrupt(corpus, tmp_path / "data", PARAMS, monkeypatch)
    plugin.write_text("RULE = 2\n")
    with pytest.raises(ValueError, match="started with"):
        prepare(corpus, tmp_path / "data", PARAMS)
    plugin.write_text("RULE = 1\n")
    prepare(corpus, tmp_path / "data", PARAMS)


def test_overwrite_starts_other_work_again(corpus, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("lingvo_moe.data.prepare._assemble", _full)
        with pytest.raises(OSError, match="full"):
            prepare(corpus, tmp_path / "data", PARAMS)
    params = dataclasses.replace(PARAMS, max_length=9)
    assert prepare(corpus, tmp_path / "data", params, overwrite=True).checks["de-en"]["too_long"]


def _full(*args):
    raise OSError("the disk is full")


def test_two_commands_cannot_make_one_dataset(corpus, tmp_path):
    with (
        lock.hold(tmp_path / "data.parts"),
        pytest.raises(lock.HeldError, match="in use"),
    ):
        prepare(corpus, tmp_path / "data", PARAMS)


class TestSynthetic:
    """The raw text lies beside the dataset, in a directory that may be the user's."""

    def test_an_interrupted_run_is_repeated(self, tmp_path):
        small = SyntheticCorpus(languages=("qna",), largest=40, smallest=40, dev=4, test=4)
        small.write(tmp_path / "data_raw")  # as a run that is killed before its dataset is complete
        dataset = prepare_synthetic(tmp_path / "data", PARAMS, raw=small)
        assert dataset.pair("qna-en").examples == {"train": 40, "dev": 4, "test": 4}


def test_when_no_line_is_kept_the_reasons_are_told(corpus, tmp_path):
    lines = ["a\tb", "\ufffd\tc", "d\t"]
    for path in (corpus / "train").iterdir():
        path.unlink()
    (corpus / "train/fr-en.tsv").write_text("\n".join(lines) + "\n")
    (corpus / "dev").mkdir(exist_ok=True)
    (corpus / "dev/fr-en.tsv").write_text("a\tx\n")
    with pytest.raises(ValueError, match="All 3") as error:
        prepare(corpus, tmp_path / "data", PARAMS)
    assert all(f"1 by {name}" in str(error.value) for name in ("empty", "held_out_in_train"))


def test_codes_in_any_script(corpus, tmp_path):
    for name in ("中文-en", "sr@latin-en", "zho_Hans-中文"):
        (corpus / f"train/{name}.tsv").write_text("a\tb\n")
    dataset = prepare(corpus, tmp_path / "data", PARAMS)
    assert set(dataset.tags) == {"en", "中文"}
    for name in ("中文-en", "sr@latin-en", "zho_Hans-中文"):
        assert len(dataset.examples("train", name)) == 1


def test_one_empty_pair_and_a_huge_line_are_no_obstacle(corpus, tmp_path):
    for side in ("fi", "en"):
        (corpus / f"train/fi-en.{side}").touch()
    with (corpus / "train/eo-en.eo").open("a") as eo, (corpus / "train/eo-en.en").open("a") as en:
        eo.write("kato " * 200_000 + "\n")
        en.write("cat\n")
    dataset = prepare(corpus, tmp_path / "data", PARAMS)
    assert dataset.pair("fi-en").examples == {"train": 0}
    assert dataset.pair("eo-en").examples == {"train": 9}
    assert dataset.checks["eo-en"]["too_long"] == 1
