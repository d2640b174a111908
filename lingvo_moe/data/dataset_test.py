import json

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.data.dataset import Dataset, Example, PairInfo, shard_bounds, write_shard
from lingvo_moe.data.vocabulary import train_vocabulary

SHARD = "test/de-en-00000-of-00001.tfrecord"


def _example(source, target, *texts):
    return Example(np.array(source, np.int32), np.array(target, np.int32), *texts)


@pytest.fixture
def dataset(tmp_path):
    vocabulary = train_vocabulary({"en": ["the cat"], "de": ["die Katze"]}, 300, tags=["en"])
    for side in ("source", "target"):
        vocabulary.save(tmp_path / f"{side}.model")
    write_shard(
        tmp_path / SHARD,
        [_example([4, 9, 8, 2], [7, 2], "die Katze", "the cat"), _example([4, 2], [6, 5, 2])],
    )
    pairs = (
        PairInfo("de-en", "de", "en", 0, {"train": 0, "test": 2}, {"test": [SHARD]}),
        PairInfo("fr-en", "fr", "en", 1, {"train": 0}, {}),
    )
    checks = {"de-en": {"empty": 1}, "fr-en": {"empty": 0}}
    digest = vocabulary.sha256
    made = Dataset(tmp_path, pairs, {"en": 4}, {"source": digest, "target": digest}, checks)
    made.save()
    return made


def test_load_gives_what_was_saved(dataset):
    loaded = Dataset.load(dataset.directory)
    assert loaded == dataset
    assert loaded.source_vocabulary.tag("en") == 4
    assert loaded.target_vocabulary.sha256 == dataset.hashes["target"]


def test_description_states_the_vocabularies(dataset):
    fields = json.loads((dataset.directory / "dataset.json").read_text())
    assert fields["format"] == 1
    assert fields["vocabularies"]["source"] == {
        "file": "source.model",
        "size": dataset.source_vocabulary.size,
        "normalization": "identity",
        "sha256": dataset.hashes["source"],
    }


def test_examples(dataset):
    first, second = dataset.examples("test", "de-en")
    assert first.source.dtype == first.target.dtype == np.int32
    assert (first.source.tolist(), first.target.tolist()) == ([4, 9, 8, 2], [7, 2])
    assert (first.source_text, first.target_text) == ("die Katze", "the cat")
    assert (second.source.tolist(), second.target.tolist()) == ([4, 2], [6, 5, 2])
    assert (second.source_text, second.target_text) == ("", "")
    assert dataset.examples("dev", "de-en") == []


def test_records_are_plain_tf_examples(dataset):
    record = next(iter(tf.data.TFRecordDataset(str(dataset.directory / SHARD)))).numpy()
    features = tf.train.Example.FromString(record).features.feature
    assert list(features["source"].int64_list.value) == [4, 9, 8, 2]
    assert list(features["target_text"].bytes_list.value) == [b"the cat"]


def test_more_examples_than_one_parsing_batch(tmp_path):
    write_shard(tmp_path / "s", [_example([i], [i, i + 1]) for i in range(5000)])
    examples = Dataset(tmp_path, (), {}, {}, {}).read_shard("s")
    assert [e.source.tolist() for e in examples] == [[i] for i in range(5000)]
    assert [e.target.tolist() for e in examples] == [[i, i + 1] for i in range(5000)]


def test_shard_bounds():
    assert shard_bounds(10, 3) == [0, 3, 6, 10]
    assert shard_bounds(0, 0) == [0]


def test_unknown_pair_offers_the_nearest(dataset):
    assert dataset.pair("fr-en").index == 1
    with pytest.raises(ValueError, match=r"Unknown pair 'dr-en'; this dataset has .*de-en"):
        dataset.pair("dr-en")


def test_no_dataset(tmp_path):
    with pytest.raises(ValueError, match=r"holds no dataset: .*Make one with lingvo-moe-prepare"):
        Dataset.load(tmp_path / "nowhere")
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(ValueError, match="holds no dataset"):
        Dataset.load(tmp_path)


def test_other_format(tmp_path):
    (tmp_path / "dataset.json").write_text('{"format": 99}')
    with pytest.raises(
        ValueError, match=r"is of format 99; this version reads 1\. Prepare the data"
    ):
        Dataset.load(tmp_path)


def test_exchanged_vocabulary(dataset):
    other = train_vocabulary({"en": ["a dog"]}, 300)
    other.save(dataset.directory / "target.model")
    loaded = Dataset.load(dataset.directory)
    assert loaded.source_vocabulary.sha256 == dataset.hashes["source"]
    with pytest.raises(ValueError, match=r"target\.model is not the vocabulary that dataset\.json"):
        _ = loaded.target_vocabulary


def test_damaged_and_missing_shards(dataset):
    path = dataset.directory / SHARD
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(OSError, match=rf"{SHARD} is missing or damaged .*prepare the data again"):
        dataset.read_shard(SHARD)
    path.unlink()
    with pytest.raises(OSError, match=rf"{SHARD} is missing or damaged"):
        dataset.read_shard(SHARD)
