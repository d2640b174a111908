import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.prepare import PrepareParams, format_summary, prepare
from lingvo_moe.data.vocabulary import EOS

PARAMS = PrepareParams(source_vocab_size=320, target_vocab_size=310, shard_size=4)


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


def _contents(directory):
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_counts_shards_and_checks(corpus, tmp_path):
    lines = []
    dataset = prepare(corpus, tmp_path / "data", PARAMS, report=lines.append)
    de, eo = dataset.pairs
    assert (de.name, de.index, de.examples) == ("de-en", 0, {"train": 3, "dev": 1, "test": 2})
    # Six lines, less one repeated, one empty, and "ein Haus", which is in test.
    assert dataset.checks["de-en"] == {
        "empty": 1,
        "duplicates": 1,
        "held_out_in_train": 1,
        "targets_in_train": 1,  # "the dog"
        "too_long": 0,
    }
    assert (eo.examples, len(eo.shards["train"])) == ({"train": 9}, 3)
    sizes = [len(dataset.read_shard(shard)) for shard in eo.shards["train"]]
    assert sizes == [3, 3, 3]
    assert lines == [
        "training vocabularies on 12 sentence pairs",
        "de-en: 3 training examples",
        "eo-en: 9 training examples",
    ]


def test_examples_are_tagged_and_end(corpus, tmp_path):
    dataset = prepare(corpus, tmp_path / "data", PARAMS)
    first = dataset.examples("train", "de-en")[0]
    assert (first.source[0], first.source[-1], first.target[-1]) == (dataset.tags["en"], EOS, EOS)
    assert dataset.source_vocabulary.decode([first.source.tolist()]) == ["die Katze"]
    assert dataset.target_vocabulary.decode([first.target.tolist()]) == ["the cat"]
    assert (first.source_text, first.target_text) == ("", "")
    assert [e.target_text for e in dataset.examples("test", "de-en")] == ["one house", "the dog"]


def test_preparing_twice_gives_the_same_bytes(corpus, tmp_path):
    for name in ("one", "two"):
        prepare(corpus, tmp_path / name, PARAMS)
    assert _contents(tmp_path / "one") == _contents(tmp_path / "two")


def test_joint_vocabulary(corpus, tmp_path):
    dataset = prepare(corpus, tmp_path / "data", PrepareParams(joint_vocab=True))
    assert dataset.hashes["source"] == dataset.hashes["target"]
    example = dataset.examples("train", "de-en")[0]
    assert dataset.source_vocabulary.decode([example.target.tolist()]) == ["the cat"]


def test_both_directions(corpus, tmp_path):
    params = PrepareParams(source_vocab_size=320, target_vocab_size=310, both_directions=True)
    dataset = prepare(corpus, tmp_path / "data", params)
    assert [pair.name for pair in dataset.pairs] == ["de-en", "en-de", "en-eo", "eo-en"]
    assert set(dataset.tags) == {"de", "en", "eo"}
    first = dataset.examples("train", "en-de")[0]
    assert first.source[0] == dataset.tags["de"]
    assert dataset.source_vocabulary.decode([first.source.tolist()]) == ["the cat"]
    assert dataset.target_vocabulary.decode([first.target.tolist()]) == ["die Katze"]
    # "the dog" is an English source of test now.
    assert dataset.checks["en-de"]["held_out_in_train"] == 1


def test_both_directions_keep_what_the_corpus_has(corpus, tmp_path):
    for side, text in (("en", "my own"), ("de", "mein eigen")):
        (corpus / f"train/en-de.{side}").write_text(f"{text}\n")
    params = PrepareParams(source_vocab_size=330, target_vocab_size=320, both_directions=True)
    dataset = prepare(corpus, tmp_path / "data", params)
    assert [pair.name for pair in dataset.pairs] == ["de-en", "en-de", "en-eo", "eo-en"]
    (example,) = dataset.examples("train", "en-de")
    assert dataset.source_vocabulary.decode([example.source.tolist()]) == ["my own"]


def test_both_directions_of_tsv(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train/de-en.tsv").write_text("eins\tone\n")
    with pytest.raises(ValueError, match="de-en is TSV; both directions need two files a pair"):
        prepare(tmp_path, tmp_path / "data", PrepareParams(both_directions=True))


def test_too_long_training_examples_are_left_out(corpus, tmp_path):
    params = PrepareParams(source_vocab_size=320, target_vocab_size=310, max_length=6)
    dataset = prepare(corpus, tmp_path / "data", params)
    lengths = [max(len(e.source), len(e.target)) for e in dataset.examples("train", "de-en")]
    assert all(length <= 6 for length in lengths)
    assert len(lengths) + dataset.checks["de-en"]["too_long"] == 3
    assert dataset.checks["de-en"]["too_long"] > 0
    assert dataset.pair("de-en").examples["test"] == 2


def test_output_is_not_overwritten_unasked(corpus, tmp_path):
    output = tmp_path / "data"
    prepare(corpus, output, PARAMS)
    with pytest.raises(ValueError, match="data is not empty; pass --overwrite or another --output"):
        prepare(corpus, output, PARAMS)
    (output / "stale").touch()
    prepare(corpus, output, PARAMS, overwrite=True)
    assert not (output / "stale").exists()


def test_only_a_dataset_is_ever_overwritten(corpus, tmp_path):
    output = tmp_path / "home"
    output.mkdir()
    (output / "letters").touch()
    with pytest.raises(ValueError, match="home holds something other than a dataset"):
        prepare(corpus, output, PARAMS, overwrite=True)
    assert (output / "letters").exists()


def test_a_failure_leaves_no_dataset(corpus, tmp_path):
    (corpus / "test/de-en.en").write_text("one line\n")
    with pytest.raises(ValueError, match="has 2 lines and"):
        prepare(corpus, tmp_path / "data", PARAMS)
    assert not (tmp_path / "data").exists()
    _write_corpus(corpus)
    prepare(corpus, tmp_path / "data", PARAMS)  # what the failure left is no obstacle
    assert not (tmp_path / "data.partial").exists()


def test_empty_corpus(tmp_path):
    (tmp_path / "corpus/train").mkdir(parents=True)
    for side in ("de", "en"):
        (tmp_path / f"corpus/train/de-en.{side}").touch()
    with pytest.raises(ValueError, match="no text to train a vocabulary on; is the train split"):
        prepare(tmp_path / "corpus", tmp_path / "data", PARAMS)


def test_summary(corpus, tmp_path):
    dataset = prepare(corpus, tmp_path / "data", PARAMS)
    header, eo, de, sizes = format_summary(dataset).splitlines()
    names = "pair train dev test empty duplicates held_out_in_train targets_in_train too_long"
    assert header.split() == names.split()
    assert eo.split() == ["eo-en", "9", "0", "0", "0", "0", "0", "0", "0"]  # largest first
    assert de.split() == ["de-en", "3", "1", "2", "1", "1", "1", "1", "0"]
    assert sizes.startswith(f"source vocabulary {dataset.source_vocabulary.size}, target")


def test_ids_are_inside_the_vocabularies(corpus, tmp_path):
    dataset = Dataset.load(prepare(corpus, tmp_path / "data", PARAMS).directory)
    for pair in dataset.pairs:
        for example in dataset.examples("train", pair.name):
            assert np.all(example.source < dataset.source_vocabulary.size)
            assert np.all(example.target < dataset.target_vocabulary.size)
    assert tf.io.gfile.glob(str(dataset.directory / "train/*.tfrecord"))
