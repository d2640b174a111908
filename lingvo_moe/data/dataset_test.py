import dataclasses
import json
import os
import resource

import numpy as np
import pytest

from lingvo_moe.data import dataset as module
from lingvo_moe.data.dataset import Dataset, Example, PairInfo
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
        PairInfo("de-en", "de", "en", 0, {"train": 0, "test": 2}, {"test": {SHARD: 2}}, LENGTHS),
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


def test_expected_ratios_are_those_of_all_dev_lines_into_a_language(dataset):
    tables = [[16, 16, 2, 20, 30], [32, 16, 1, 20, 30]], [[16, 16, 1, 10, 15]]
    both = zip(dataset.pairs, tables, strict=True)
    pairs = [dataclasses.replace(pair, lengths={"dev": table}) for pair, table in both]
    assert dataset.expected_ratios == {}
    assert dataclasses.replace(dataset, pairs=pairs).expected_ratios == {"en": 75 / 50}


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


def test_other_format(tmp_path):
    for other in (2, 99):
        (tmp_path / "dataset.json").write_text(f'{{"format": {other}}}')
        with pytest.raises(ValueError, match=f"format {other}"):
            Dataset.load(tmp_path)


def test_exchanged_vocabulary(dataset):
    other = train_vocabulary({"en": ["a dog"]}, 300)
    other.save(dataset.directory / "target.model")
    loaded = Dataset.load(dataset.directory)
    assert loaded.source_vocabulary.sha256 == dataset.hashes["source"]
    with pytest.raises(ValueError, match="SHA-256"):
        _ = loaded.target_vocabulary


def test_identity_is_of_the_contents(dataset):
    """The same examples written again are the same data; another example or order is not."""
    loaded = Dataset.load(dataset.directory)
    examples = list(loaded.records(SHARD))
    write_records(dataset.directory / SHARD, examples)
    dataset.save()
    assert Dataset.load(dataset.directory).sha256 == loaded.sha256
    write_records(dataset.directory / SHARD, examples[::-1])
    dataset.save()
    assert Dataset.load(dataset.directory).sha256 != loaded.sha256


def test_a_shard_that_is_another_file(dataset):
    write_records(dataset.directory / SHARD, list(dataset.records(SHARD))[::-1])
    loaded = Dataset.load(dataset.directory)
    with pytest.raises(OSError, match="checksum"):
        loaded.examples("test", "de-en")


@pytest.mark.parametrize("text", ["", "null"])
def test_no_description(dataset, text):
    (dataset.directory / "dataset.json").write_text(text)
    with pytest.raises(ValueError, match="lingvo-moe-prepare"):
        Dataset.load(dataset.directory)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("pairs", {}, "'pairs' must be list"),
        ("pairs.0.name", "../../x-en", "cannot name"),
        ("tags", {}, "no tag"),
        ("vocabularies", {"source": {}}, "'target'"),
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
    assert str(dataset.directory) in str(error.value)


def test_damaged_and_missing_shards(dataset):
    path = dataset.directory / SHARD
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(OSError, match=SHARD):
        list(dataset.records(SHARD))
    path.unlink()
    with pytest.raises(OSError, match=SHARD):
        list(dataset.records(SHARD))


def test_all_datasets_together_keep_half_of_the_allowed_files_open(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (8, 8))
    shards = {f"train/{number}": 1 for number in range(6)}
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
