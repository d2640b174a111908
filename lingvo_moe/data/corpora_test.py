import gzip

import pytest

from lingvo_moe.data.corpora import SentencePair, clean, find_pairs


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
    assert de.read("train") == [SentencePair("eins", "one")]
    assert de.read("dev") == []
    assert (pt.name, pt.source, pt.target) == ("pt_BR-en", "pt_BR", "en")
    assert pt.read("train") == [("um", "one"), ("dois", "two")]
    assert pt.read("test") == [("três", "three")]


def test_only_newlines_end_lines(tmp_path):
    # U+2028 and U+0085 are line ends to str.splitlines, and occur inside sentences.
    _write(tmp_path / "train/de-en.de", "a\u2028b\u0085c\r\nd")
    _write(tmp_path / "train/de-en.en", "x\ny\n")
    (pair,) = find_pairs(tmp_path)
    assert pair.read("train") == [("a\u2028b\u0085c", "x"), ("d", "y")]


def test_uneven_files(tmp_path):
    _write(tmp_path / "train/de-en.de", "eins\nzwei\n")
    _write(tmp_path / "train/de-en.en", "one\n")
    (pair,) = find_pairs(tmp_path)
    with pytest.raises(ValueError, match=r"de-en\.de has 2 lines and .*de-en\.en has 1;"):
        pair.read("train")


@pytest.mark.parametrize("name", ["de-en.de", "de-en.de.gz"])
def test_bad_utf8_names_file_and_line(tmp_path, name):
    _write(tmp_path / "train" / name, b"gut\nschl\xe4cht\n")
    _write(tmp_path / "train/de-en.en", "good\nbad\n")
    (pair,) = find_pairs(tmp_path)
    with pytest.raises(ValueError, match=rf"{name}, line 2: not UTF-8 \(.* at byte 4\)"):
        pair.read("train")


@pytest.mark.parametrize(
    "data", [b"plain text", gzip.compress(b"eins\n" * 99, mtime=0)[:-9]], ids=["plain", "truncated"]
)
def test_broken_gzip_names_the_file(tmp_path, data):
    (tmp_path / "train").mkdir()
    (tmp_path / "train/de-en.de.gz").write_bytes(data)
    _write(tmp_path / "train/de-en.en", "one\n")
    (pair,) = find_pairs(tmp_path)
    with pytest.raises(ValueError, match=r"de-en\.de\.gz is not a whole gzip file"):
        pair.read("train")


def test_tsv_keeps_empty_sides_and_refuses_other_tabs(tmp_path):
    _write(tmp_path / "train/de-en.tsv", "eins\tone\n\ttwo\ndrei\t\n")
    (pair,) = find_pairs(tmp_path)
    assert pair.read("train") == [("eins", "one"), ("", "two"), ("drei", "")]
    _write(tmp_path / "train/de-en.tsv", "eins\tone\tuno\n")
    with pytest.raises(ValueError, match=r"de-en\.tsv, line 1: 2 tabs; a line is SOURCE, one tab"):
        pair.read("train")


def test_missing_side(tmp_path):
    _write(tmp_path / "train/de-en.de", "eins\n")
    with pytest.raises(ValueError, match=r"has de-en\.de but no de-en\.en"):
        find_pairs(tmp_path)


def test_no_train_split(tmp_path):
    _write(tmp_path / "test/de-en.tsv", "eins\tone\n")
    with pytest.raises(ValueError, match="has no directory 'train'; a corpus is SPLIT/SRC-TGT"):
        find_pairs(tmp_path)


def test_no_files(tmp_path):
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match=r"train is empty; it must hold files such as de-en\.de"):
        find_pairs(tmp_path)


@pytest.mark.parametrize("name", ["zh-TW-en.zh-TW", "zh-TW-en.en", "en-zh-TW.zh-TW"])
def test_a_hyphen_in_a_code_is_not_passed_over(tmp_path, name):
    _write(tmp_path / "train" / name, "x\n")
    with pytest.raises(ValueError, match="does not read as SRC-TGT; a language code has no hyphen"):
        find_pairs(tmp_path)


def test_clean_counts_and_leaves_out():
    train = [
        ("eins", "one"),
        ("eins", "one"),  # a duplicate
        ("eins", "a"),  # the same source, another target: not a duplicate
        ("", "two"),  # empty
        ("drei", "three"),  # its source is in test
        ("vier", "four"),  # its target is in dev: counted there
    ]
    dev = [("quattro", "four"), ("cinque", "five"), ("sei", "")]
    test = [("drei", "III")]
    splits = {"train": train, "dev": dev, "test": test}
    lines, checks = clean({s: [SentencePair(*p) for p in ps] for s, ps in splits.items()})
    assert lines["train"] == [("eins", "one"), ("eins", "a"), ("vier", "four")]
    assert lines["dev"] == [("quattro", "four"), ("cinque", "five")]
    assert lines["test"] == [("drei", "III")]
    assert checks == {
        "empty": 2,
        "duplicates": 1,
        "held_out_in_train": 1,
        "targets_in_train": 1,
    }


def test_clean_without_train_or_held_out():
    assert clean({"test": [SentencePair("a", "b")]}).lines == {"test": [("a", "b")], "train": []}
    assert clean({"train": [SentencePair("a", "b")]}).lines == {"train": [("a", "b")]}
