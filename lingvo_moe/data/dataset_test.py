import dataclasses
import json
import os
import resource

import numpy as np
import pytest

from lingvo_moe.data import dataset as module
from lingvo_moe.data.dataset import (
    Dataset,
    Example,
    PairInfo,
    place_of,
    shard_bounds,
)
from lingvo_moe.data.records import Records, write_records
from lingvo_moe.data.vocabulary import train_vocabulary

SHARD = "test/de-en-00000-of-00001.records"


def _example(source, target, *texts):
    return Example(np.array(source, np.int32), np.array(target, np.int32), *texts)


LENGTHS = {"train": [[16, 16, 3, 30, 29], [48, 32, 1, 35, 17]], "dev": []}


@pytest.fixture
def dataset(tmp_path):
    vocabulary = train_vocabulary({"en": ["the cat"], "de": ["die Katze"]}, 300, tags=["en"])
    for side in ("source", "target"):
        vocabulary.save(tmp_path / f"{side}.model")
    write_records(
        tmp_path / SHARD,
        [_example([4, 9, 8, 2], [7, 2], "die Katze", "the cat"), _example([4, 2], [6, 5, 2])],
    )
    pairs = (
        PairInfo("de-en", "de", "en", 0, {"train": 0, "test": 2}, {"test": [SHARD]}, LENGTHS),
        PairInfo("fr-en", "fr", "en", 1, {"train": 0}, {}),
    )
    checks = {"de-en": {"empty": 1}, "fr-en": {"empty": 0}}
    digest = vocabulary.sha256
    made = Dataset(tmp_path, pairs, {"en": 4}, {"source": digest, "target": digest}, checks)
    made.save()
    return made


def _change(dataset, change):
    """Rewrites dataset.json after `change` of its fields."""
    path = dataset.directory / "dataset.json"
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


def test_load_gives_what_was_saved(dataset):
    loaded = Dataset.load(dataset.directory)
    digest = Records(dataset.directory / SHARD).checksum
    assert loaded == dataclasses.replace(dataset, checksums={SHARD: digest})
    assert "[ 48, 32, 1, 35, 17 ]" in (dataset.directory / "dataset.json").read_text()
    assert loaded.source_vocabulary.tag("en") == 4
    assert loaded.target_vocabulary.sha256 == dataset.hashes["target"]


def test_examples(dataset):
    first, second = dataset.examples("test", "de-en")
    assert first.source.dtype == first.target.dtype == np.int32
    assert (first.source.tolist(), first.target.tolist()) == ([4, 9, 8, 2], [7, 2])
    assert (first.source_text, first.target_text) == ("die Katze", "the cat")
    assert (second.source.tolist(), second.target.tolist()) == ([4, 2], [6, 5, 2])
    assert (second.source_text, second.target_text) == ("", "")
    assert dataset.examples("dev", "de-en") == []


def test_shard_bounds():
    assert shard_bounds(10, 3) == [0, 3, 6, 10]
    assert shard_bounds(0, 0) == [0]
    bounds = shard_bounds(10, 3)
    for index in range(10):
        shard, number = place_of(index, 10, 3)
        assert bounds[shard] + number == index < bounds[shard + 1]


def test_other_format(tmp_path):
    for other in (2, 99):
        (tmp_path / "dataset.json").write_text(f'{{"format": {other}}}')
        match = rf"is of format {other}; this version reads 3\. Prepare the data"
        with pytest.raises(ValueError, match=match):
            Dataset.load(tmp_path)


def test_exchanged_vocabulary(dataset):
    other = train_vocabulary({"en": ["a dog"]}, 300)
    other.save(dataset.directory / "target.model")
    loaded = Dataset.load(dataset.directory)
    assert loaded.source_vocabulary.sha256 == dataset.hashes["source"]
    with pytest.raises(ValueError, match=r"target\.model is not the vocabulary that the data was"):
        _ = loaded.target_vocabulary


def test_identity_is_of_the_contents(dataset):
    """The same examples written again are the same data; another example or order is not."""
    loaded = Dataset.load(dataset.directory)
    examples = list(loaded.read_shard(SHARD))
    _change(loaded, lambda fields: fields.update(checksums={}))
    assert Dataset.load(dataset.directory).sha256 == loaded.sha256  # computed from the shards
    write_records(dataset.directory / SHARD, examples)
    dataset.save()
    assert Dataset.load(dataset.directory).sha256 == loaded.sha256
    write_records(dataset.directory / SHARD, examples[::-1])
    dataset.save()
    assert Dataset.load(dataset.directory).sha256 != loaded.sha256


def test_a_shard_that_is_another_file(dataset):
    write_records(dataset.directory / SHARD, list(dataset.read_shard(SHARD))[::-1])
    loaded = Dataset.load(dataset.directory)
    with pytest.raises(OSError, match=rf"{SHARD} is not the file that dataset\.json describes"):
        loaded.examples("test", "de-en")


def test_ids_that_the_vocabulary_does_not_have(dataset):
    size = dataset.target_vocabulary.size
    write_records(dataset.directory / SHARD, [_example([4, 2], [size - 1]), _example([4], [size])])
    match = rf"has target ids up to {size}; the vocabulary has 0 to {size - 1}\."
    with pytest.raises(OSError, match=match):
        list(dataset.read_shard(SHARD))


def test_fewer_examples_than_described(dataset):
    _change(dataset, lambda fields: fields["pairs"][0]["examples"].update(test=3))
    with pytest.raises(OSError, match=r"have 2 examples where dataset\.json says 3; prepare"):
        Dataset.load(dataset.directory).examples("test", "de-en")


@pytest.mark.parametrize("text", ["", "null"])
def test_no_description(dataset, text):
    (dataset.directory / "dataset.json").write_text(text)
    with pytest.raises(ValueError, match=r"holds no dataset: .*dataset\.json .* Make one with"):
        Dataset.load(dataset.directory)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("pairs", {}, "'pairs' must be list, got {}"),
        ("pairs.1.name", "de-en", "pair de-en more than once"),
        ("pairs.0.examples.train", -7, r"Pair de-en cannot have .*-7"),
        ("pairs.1.examples.train", 7, "train examples of fr-en and no shard of them"),
        ("pairs.0.shards.test", ["../../x"], r"shard '\.\./\.\./x' of de-en is outside"),
        ("pairs.0.lengths.train.1", [48, 32, 1], r"Pair de-en cannot have the lengths \[48, 32"),
        ("pairs.0.name", "../../x-en", r"'\.\./\.\./x-en' cannot name a language pair: files are"),
        ("tags", {}, "de-en and no tag of language 'en'"),
        ("vocabularies", {"source": {}}, "vocabularies has no field 'target'"),
    ],
)
def test_a_description_that_cannot_be(dataset, path, value, message):
    def put(fields):
        *owners, last = [int(name) if name.isdigit() else name for name in path.split(".")]
        for name in owners:
            fields = fields[name]
        fields[last] = value

    _change(dataset, put)
    with pytest.raises(ValueError, match=message) as error:
        Dataset.load(dataset.directory)
    assert str(dataset.directory / "dataset.json") in str(error.value)


def test_damaged_and_missing_shards(dataset):
    path = dataset.directory / SHARD
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(OSError, match=rf"{SHARD} is missing or damaged .*prepare the data again"):
        list(dataset.read_shard(SHARD))
    path.unlink()
    with pytest.raises(OSError, match=rf"{SHARD} is missing or damaged"):
        list(dataset.read_shard(SHARD))


def test_all_datasets_together_keep_half_of_the_allowed_files_open(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (8, 8))
    shards = [f"train/{number}" for number in range(6)]
    pair = PairInfo("de-en", "de", "en", 0, {"train": 6}, {"train": shards})
    module._open_files.cache_clear()
    before = len(os.listdir("/proc/self/fd"))
    datasets = [Dataset(tmp_path / name, (pair,), {"en": 4}, {}, {}) for name in ("a", "b")]
    for number, one in enumerate(datasets):
        for i, shard in enumerate(shards):
            write_records(one.directory / shard, [_example([4, 10 * number + i, 2], [2])])
    for _ in range(2):
        found = [int(d.example("train", pair, i).source[1]) for i in range(6) for d in datasets]
        assert found == [0, 10, 1, 11, 2, 12, 3, 13, 4, 14, 5, 15]
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    module._open_files.cache_clear()
