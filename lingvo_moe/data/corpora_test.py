import gzip
import os
import resource

import pytest

from lingvo_moe.data import corpora
from lingvo_moe.data.corpora import SentencePair, find_pairs, write_corpus


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text if isinstance(text, bytes) else text.encode("utf-8")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def test_finds_pairs_in_all_layouts(tmp_path):
    _write(tmp_path / "train/pt_BR-en.pt_BR", "um\ndois\n")
    _write(tmp_path / "train/pt_BR-en.en", "one\ntwo\n")
    _write(tmp_path / "test/pt_BR-en.tsv.gz", "três\tthree\n")
    _write(tmp_path / "train/de-en.de.gz", "eins\n")
    _write(tmp_path / "train/de-en.en", " one \n")
    _write(tmp_path / "train/README.md", "not a corpus file")
    de, pt = find_pairs(tmp_path)
    assert (de.name, de.source, de.target) == ("de-en", "de", "en")
    assert list(de.read("train")) == [SentencePair("eins", "one")]
    assert list(de.read("dev")) == []
    assert (pt.name, pt.source, pt.target) == ("pt_BR-en", "pt_BR", "en")
    assert list(pt.read("train")) == [("um", "one"), ("dois", "two")]
    assert list(pt.read("test")) == [("três", "three")]


def test_uneven_files(tmp_path):
    _write(tmp_path / "train/de-en.de", "eins\nzwei\n")
    _write(tmp_path / "train/de-en.en", "one\n")
    (pair,) = find_pairs(tmp_path)
    with pytest.raises(ValueError, match=r"2 lines"):
        list(pair.read("train"))


def test_tsv_keeps_empty_sides_and_refuses_other_tabs(tmp_path):
    _write(tmp_path / "train/de-en.tsv", "eins\tone\n\ttwo\ndrei\t\n")
    (pair,) = find_pairs(tmp_path)
    assert list(pair.read("train")) == [("eins", "one"), ("", "two"), ("drei", "")]
    _write(tmp_path / "train/de-en.tsv", "eins\tone\tuno\n")
    with pytest.raises(ValueError, match="line 1: 2 tabs"):
        list(pair.read("train"))


def test_missing_side(tmp_path):
    _write(tmp_path / "train/de-en.de", "eins\n")
    with pytest.raises(ValueError, match=r"no de-en\.en"):
        find_pairs(tmp_path)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    "name",
    [
        "zh-TW-en.zh-TW",
        "fr-en.txt",
        "fr-EN.en",
        "$\\frac{-e$n.tsv",
        "fr-e\nn.tsv",
        "fr-en/part.tsv",
    ],
)
def test_what_looks_like_data_is_not_passed_over(tmp_path, split, name):
    _write(tmp_path / "train/de-en.tsv", "eins\tone\n")
    _write(tmp_path / split / name, "x\ty\n")
    first = name.split("/")[0]
    with pytest.raises(ValueError, match="not read") as error:
        find_pairs(tmp_path)
    assert str(tmp_path / split / first) in str(error.value)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("de-en.de", "de-en.en", "de-en.tsv"), r"/de-en\.de and .*/de-en\.tsv are two sources"),
        (("en-en.en",), r"train/en-en\.en would be both sides of en-en\. For text in one language"),
    ],
)
def test_one_source_for_each_side(tmp_path, names, message):
    for name in names:
        _write(tmp_path / "train" / name, "eins\tone\n")
    with pytest.raises(ValueError, match=message):
        find_pairs(tmp_path)


def test_one_language_rewritten(tmp_path):
    _write(tmp_path / "train/en-en.tsv", "i goes\tI go\n")
    (pair,) = find_pairs(tmp_path)
    assert list(pair.read("train")) == [("i goes", "I go")]
    write_corpus(tmp_path / "again", {"train": [("en-en", "i goes", "I go")]})
    (again,) = find_pairs(tmp_path / "again")
    assert list(again.read("train")) == [("i goes", "I go")]
    with pytest.raises(ValueError, match="Example 1 of dev"):
        write_corpus(tmp_path / "tab", {"dev": [("en-en", "a\tb", "c")]})


def test_thousands_of_pairs_are_written_with_few_open_files(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "_LINES_AT_ONCE", 3)
    examples = [(f"l{i}-en", f"{i} {k}", "x") for k in range(2) for i in range(5)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, before[1]))
    try:
        write_corpus(tmp_path / "c", {"train": iter(examples)})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for i, pair in enumerate(find_pairs(tmp_path / "c")):
        assert list(pair.read("train")) == [(f"{i} 0", "x"), (f"{i} 1", "x")]


@pytest.mark.parametrize(
    ("name", "split"),
    [("Validation", "dev"), ("training", "train")],
)
def test_a_split_by_another_name_is_not_passed_over(tmp_path, name, split):
    _write(tmp_path / "train/de-en.tsv", "eins\tone\n")
    _write(tmp_path / name / "de-en.tsv", "zwei\ttwo\n")
    with pytest.raises(ValueError, match=f"to '{split}'"):
        find_pairs(tmp_path)


def test_other_names_are_warned_of_and_hidden_ones_are_not(tmp_path):
    for name in ("train/de-en.tsv", "counts.tsv", "notes/x", "train/README", ".git/x", "test/.x-y"):
        _write(tmp_path / name, "eins\tone\n")
    warnings = []
    find_pairs(tmp_path, warnings.append)
    assert [warning.split(";")[0] for warning in warnings] == [
        f"warning: {tmp_path}/{name} is not read"
        for name in ("counts.tsv", "notes", "train/README")
    ]


def test_what_cannot_be_read_is_found_before_any_work(tmp_path):
    with pytest.raises(ValueError, match="no directory"):
        find_pairs(tmp_path / "corpus")
    _write(tmp_path / "train/de-en.de", "eins\n")
    english = tmp_path / "train/de-en.en"
    english.symlink_to("nowhere")
    with pytest.raises(ValueError, match="link to nothing"):
        find_pairs(tmp_path)
    english.unlink()
    os.mkfifo(english)  # reading it would wait for ever
    with pytest.raises(ValueError, match="no file"):
        find_pairs(tmp_path)
    english.unlink()
    _write(english, "one\n")
    (tmp_path / "test").write_text("")
    with pytest.raises(ValueError, match="a directory"):
        find_pairs(tmp_path)


def test_the_other_direction(tmp_path):
    _write(tmp_path / "train/de-en.tsv", "eins\tone\n")
    _write(tmp_path / "test/de-en.de", "zwei\n")
    _write(tmp_path / "test/de-en.en", "two\n")
    turned = find_pairs(tmp_path)[0].reverse()
    assert (turned.name, turned.source, turned.target) == ("en-de", "en", "de")
    assert list(turned.read("train")) == [SentencePair("one", "eins")]
    assert list(turned.read("test")) == [SentencePair("two", "zwei")]
    assert list(turned.reverse().read("train")) == [SentencePair("eins", "one")]
