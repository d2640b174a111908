"""Tests of the pieces of a pair: damage, and text that is held out of train."""

import dataclasses
import os

import pytest

from lingvo_moe.data import prepare as preparation
from lingvo_moe.data.prepare import PrepareParams, prepare
from lingvo_moe.data.prepare_pair import digest_of
from lingvo_moe.testing.interrupted import interrupt

PARAMS = PrepareParams(
    source_vocab_size=330, target_vocab_size=320, source_normalization="nmt_nfkc"
)
TRAIN = [(f"katze {i}", f"cat {i}") for i in range(8)]


def _corpus(directory, **splits):
    """Writes a corpus.

    Args:
        directory: its directory.
        **splits: split -> pair, such as "de_en" -> lines of (source, target).
    """
    for split, pairs in splits.items():
        for pair, lines in pairs.items():
            path = directory / split / f"{pair.replace('_', '-')}.tsv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{a}\t{b}\n" for a, b in lines), encoding="utf-8")
    return directory


@pytest.fixture
def corpus(tmp_path):
    held = {"dev": {"de_en": [("hund", "dog")]}, "test": {"de_en": [("maus", "mouse")]}}
    return _corpus(tmp_path / "corpus", train={"de_en": TRAIN}, **held)


@pytest.mark.parametrize(("targets", "left_out"), [(False, 2), (True, 3)])
def test_held_out_text_of_the_extended_dataset_is_held_out_too(targets, left_out, corpus, tmp_path):
    """Models are trained on both together."""
    base = prepare(corpus, tmp_path / "base", PARAMS)
    lines = [*TRAIN, ("hund", "a dog"), ("maus", "a mouse"), ("die maus", "mouse")]
    mined = _corpus(tmp_path / "mined", train={"de_en": lines})
    params = PrepareParams(extend=str(base.directory), new_pieces=0, held_out_targets=targets)
    messages = []
    dataset = prepare(mined, tmp_path / "data", params, report=messages.append)
    assert dataset.pair("de-en").examples == {"train": len(lines) - left_out}
    assert dataset.checks["de-en"]["held_out_in_train"] == left_out
    assert dataset.checks["de-en"]["targets_in_train"] == (0 if targets else 1)
    assert any("also in train: 1 of 2" in line for line in messages) != targets


def test_another_dataset_to_extend_is_other_work(corpus, tmp_path, monkeypatch):
    base = prepare(corpus, tmp_path / "base", PARAMS)
    params = PrepareParams(extend=str(base.directory), new_pieces=0)
    more = _corpus(tmp_path / "more", train={"de_en": TRAIN})
    interrupt(more, tmp_path / "data", params, monkeypatch)
    _corpus(corpus, dev={"de_en": [("huhn", "dog"), ("hahn", "dog")]})
    prepare(corpus, tmp_path / "base", PARAMS, overwrite=True)
    with pytest.raises(ValueError, match="started with"):
        prepare(more, tmp_path / "data", params)


def test_both_directions_complete_each_split(tmp_path):
    """As in WMT's corpora, each direction has a test set of its own."""
    tests = {"de_en": [("eins", "one")], "en_de": [("two", "zwei")]}
    dev = {"de_en": [("drei", "three")]}
    corpus = _corpus(tmp_path / "corpus", train={"de_en": TRAIN}, dev=dev, test=tests)
    params = dataclasses.replace(PARAMS, both_directions=True)
    dataset = prepare(corpus, tmp_path / "data", params)
    for pair in dataset.pairs:
        assert pair.examples == {"train": 8, "dev": 1, "test": 1}
    (example,) = dataset.examples("test", "en-de")
    assert (example.source_text, example.target_text) == ("two", "zwei")
    (example,) = dataset.examples("dev", "en-de")
    assert (example.source_text, example.target_text) == ("three", "drei")
    first = dataset.examples("train", "en-de")[0]
    assert dataset.source_vocabulary.decode([first.source.tolist()]) == ["cat 0"]


@pytest.mark.parametrize("extend", [False, True])
def test_texts_are_compared_as_the_vocabulary_reads_them(extend, corpus, tmp_path):
    """No id sequence of dev or test is one of train, and none of train is there twice."""
    train = [
        *TRAIN,
        ("katze  0", "cat 0"),  # a duplicate
        ("ｋatze 1", "cat 1"),  # another
        ("  katze 2\u3000", "cat▁2"),  # another
        *(("hund ", "a"), ("ｈund", "b"), ("maus\u200b", "c")),  # held out
        *(("d", "the  mouse"), ("e", "the mouse")),  # targets of test
        ("f", "the ｍouse"),  # another target: the target vocabulary keeps the character
    ]
    test = [("maus", "the mouse"), ("mäuse", "the▁mouse")]
    _corpus(corpus, train={"de_en": train}, test={"de_en": test})
    params = PARAMS
    if extend:  # by the rules of the extended vocabularies
        base = prepare(corpus, tmp_path / "base", PARAMS)
        (base.directory / "dataset.json").unlink()
        other = {"source_normalization": "identity", "target_normalization": "nmt_nfkc"}
        params = dataclasses.replace(PARAMS, extend=str(base.directory), **other)
    dataset = prepare(corpus, tmp_path / "data", params)
    checks = dataset.checks["de-en"]
    assert (checks["duplicates"], checks["held_out_in_train"], checks["targets_in_train"]) == (
        3,
        3,
        2,
    )
    ids = [e.source.tolist() for e in dataset.examples("train", "de-en")]
    held = [e.source.tolist() for s in ("dev", "test") for e in dataset.examples(s, "de-en")]
    assert len({*map(tuple, ids)}) == len(ids) == len(train) - 6
    assert not {*map(tuple, ids)} & {*map(tuple, held)}


def test_digits_of_another_script_make_no_other_text(corpus, tmp_path):
    _corpus(corpus, train={"de_en": [*TRAIN, ("maus ৭", "a")]}, test={"de_en": [("maus 7", "b")]})
    params = dataclasses.replace(PARAMS, source_normalization="nfc")
    checks = prepare(corpus, tmp_path / "data", params).checks
    assert checks["de-en"]["held_out_in_train"] == 1


@pytest.mark.parametrize("held_out_targets", [False, True])
def test_held_out_pairs_are_not_in_train_of_the_other_direction(held_out_targets, tmp_path):
    train = [*TRAIN, ("eins", "one"), ("zwei", "two"), ("drei", "three")]
    turned = [line[::-1] for line in train]
    tests = {"de_en": [("ｅins", "one"), ("zwei", "too")], "en_de": [("3", "3")]}
    dev = {"en_de": [("three", "drei")]}
    given = {"de_en": train, "en_de": [*turned, ("one", "ein")]}
    corpus = _corpus(tmp_path / "corpus", train=given, test=tests, dev=dev)
    params = dataclasses.replace(PARAMS, held_out_targets=held_out_targets)
    dataset = prepare(corpus, tmp_path / "data", params)
    # de-en: "eins" and "zwei" are sources of its test; "drei" is in dev of en-de, turned.
    # en-de: "three" is a source of its dev; "one" is in test of de-en with "eins", not with "ein".
    assert {p: c["held_out_in_train"] for p, c in dataset.checks.items()} == {
        "de-en": 3,
        "en-de": 2,
    }
    only = _corpus(tmp_path / "only", train={"de_en": train}, test=tests, dev=dev)
    both = dataclasses.replace(params, both_directions=True)
    checks = prepare(only, tmp_path / "both", both).checks
    assert {pair: count["held_out_in_train"] for pair, count in checks.items()} == {
        "de-en": 3,
        "en-de": 2,
    }


def test_held_out_pairs_of_the_extended_dataset_are_not_in_train_turned(corpus, tmp_path):
    base = prepare(corpus, tmp_path / "base", PARAMS)
    lines = [*(line[::-1] for line in TRAIN), ("dog", "hund"), ("dog", "hündin")]
    mined = _corpus(tmp_path / "mined", train={"en_de": lines})
    params = PrepareParams(extend=str(base.directory), new_pieces=20)
    dataset = prepare(mined, tmp_path / "data", params)
    assert dataset.checks["en-de"]["held_out_in_train"] == 1


def test_dev_or_test_into_a_language_without_train_text_is_refused(tmp_path):
    lines = [("gato", "cat")]
    corpus = _corpus(tmp_path / "corpus", train={"es_en": TRAIN}, test={"es_EN": lines})
    _corpus(corpus, dev={"spa_en": lines})
    with pytest.raises(ValueError, match="es-EN, but no train text"):
        prepare(corpus, tmp_path / "data", PARAMS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"]
    asked = dataclasses.replace(PARAMS, zero_shot_targets=True)
    assert prepare(corpus, tmp_path / "data", asked).pair("es-EN").examples == {"test": 1}
    # A model that is extended may have learnt to write the language.
    more = _corpus(tmp_path / "more", train={"en_es": TRAIN}, test={"fr_en": lines})
    extending = PrepareParams(extend=str(tmp_path / "data"), new_pieces=20)
    assert prepare(more, tmp_path / "extended", extending).pair("fr-en").examples == {"test": 1}
    only = _corpus(tmp_path / "only", test={"fr_de": lines})
    assert prepare(only, tmp_path / "evaluated", extending).pair("fr-de").examples == {"test": 1}


def test_targets_of_lines_that_are_too_long_are_not_in_train(corpus, tmp_path):
    _corpus(corpus, train={"de_en": [*TRAIN, ("lang " * 400, "mouse")]})
    checks = prepare(corpus, tmp_path / "data", PARAMS).checks["de-en"]
    assert (checks["too_long"], checks["targets_in_train"]) == (1, 0)


@pytest.mark.parametrize("change", ["more", "no text", "restored date"])
def test_a_file_that_changes_while_it_is_read_is_an_error(change, corpus, tmp_path, monkeypatch):
    file = corpus / "train/de-en.tsv"
    content, times = file.read_bytes(), file.stat()
    changed = {
        "more": content + content,
        "no text": b"\xff" + content,
        "restored date": content.replace(b"cat 7", b"dog 7"),
    }

    def find_after(*args):
        found = digest_of(*args)
        if args[0] == file and file.read_bytes() == content:
            file.write_bytes(changed[change])
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        return found

    monkeypatch.setattr(preparation, "digest_of", find_after)
    with pytest.raises(ValueError, match=r"de-en\.tsv changed"):
        prepare(corpus, tmp_path / "data", PARAMS)
    assert os.listdir(tmp_path) == ["corpus"]
