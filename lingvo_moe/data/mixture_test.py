import dataclasses

import numpy as np
import pytest

from lingvo_moe.data.dataset import Dataset, Example, PairInfo
from lingvo_moe.data.mixture import Corpus, identity
from lingvo_moe.data.pipeline import InputParams, TrainInput
from lingvo_moe.data.records import write_records
from lingvo_moe.data.vocabulary import train_vocabulary

SIZES = {"de-en": 20, "fr-en": 10, "sw-en": 10}


def _make(directory, sizes=SIZES, word="cat"):
    """A dataset whose pair p has sources [tag, 10 p + 300, …]."""
    vocabulary = train_vocabulary({"en": [f"the {word}"]}, 300, tags=["en"])
    pairs = []
    for index, (name, size) in enumerate(sizes.items()):
        shard = f"train/{name}.records"
        ids = [np.array([4, 30 + index, 100 + i, 2]) for i in range(size)]
        write_records(directory / shard, (Example(one, one[1:]) for one in ids))
        languages = name.split("-")
        pairs.append(PairInfo(name, *languages, index, {"train": size}, {"train": {shard: size}}))
    hashes = {}
    for side in ("source", "target"):
        vocabulary.save(directory / f"{side}.model")
        hashes[side] = vocabulary.sha256
    Dataset(directory, tuple(pairs), {"en": 4}, hashes, {}).save()
    return Dataset.load(directory)


@pytest.fixture
def dataset(tmp_path):
    return _make(tmp_path / "main")


@pytest.fixture
def mined(tmp_path):
    _make(tmp_path / "mined", {"fr-en": 30, "sw-en": 10})
    return Corpus(name="mined", data=str(tmp_path / "mined"), weight=3.0)


def _shares(params, dataset):
    mixture = params.mixture(dataset)
    names = [stream.name for stream in mixture.streams]
    return dict(zip(names, mixture.probabilities.tolist(), strict=True))


def test_a_corpus_by_its_weight_then_a_pair_of_it_by_size(dataset, mined):
    params = InputParams(temperature=1.0, corpora=(mined,))
    main = {"de-en": 0.25 * 0.5, "fr-en": 0.25 * 0.25, "sw-en": 0.25 * 0.25}
    more = {"fr-en (mined)": 0.75 * 0.75, "sw-en (mined)": 0.75 * 0.25}
    assert _shares(params, dataset) == pytest.approx(main | more)


def test_a_named_pair_may_have_text_in_a_further_corpus_alone(tmp_path):
    dataset = _make(tmp_path / "main", {"de-en": 20, "fr-en": 10, "sw-en": 0})
    _make(tmp_path / "mined", {"sw-en": 10})
    mined = Corpus(name="mined", data=str(tmp_path / "mined"))
    named = InputParams(pairs=("de-en", "sw-en"), corpora=(mined,))
    assert _shares(named, dataset) == pytest.approx({"de-en": 0.5, "sw-en (mined)": 0.5})
    only = InputParams(pairs=("sw-en",), corpora=(mined,))
    assert _shares(only, dataset) == {"sw-en (mined)": 1.0}
    _make(tmp_path / "mined", {"de-en": 10})
    with pytest.raises(ValueError, match="corpora mined"):
        only.mixture(dataset)


def test_examples_are_counted_in_all_corpora(dataset, mined):
    everything = InputParams(corpora=(mined,)).mixture(dataset).examples
    assert everything == {"de-en": 20, "fr-en": 10 + 30, "sw-en": 10 + 10}
    some = InputParams(corpora=(mined,), pair_factors=(("de", 0.0),), pairs=("de-en", "fr-en"))
    assert some.mixture(dataset).examples == {"fr-en": 10 + 30}


def test_a_tag_follows_the_tag_of_the_language(dataset, mined):
    tagged = dataclasses.replace(mined, tag="<bt>", weight=1e9)
    batches = TrainInput(dataset, InputParams(batch_size=2, corpora=(tagged,)), seed=1)
    ids = batches.next_batch().source_ids[0].tolist()
    tag = dataset.source_vocabulary.encode(["<bt>"])[0]
    assert len(tag) >= 1
    first = ids[: ids.index(2) + 1]
    assert first[: 1 + len(tag)] == [4, *tag]
    assert len(first) == len(tag) + 4


def test_the_data_s_identity_has_all_corpora(dataset, mined, tmp_path):
    alone, both = identity(dataset, ()), identity(dataset, (mined,))
    assert alone == dataset.sha256 != both
    _make(tmp_path / "mined", {"fr-en": 31, "sw-en": 10})
    assert identity(dataset, (mined,)) != both


def test_names_of_corpora_differ():
    with pytest.raises(ValueError, match="own"):
        InputParams(corpora=(Corpus(name="data", data="x"),))


def test_corpora_that_do_not_fit(dataset, tmp_path):
    def refused(directory, message):
        corpus = Corpus(name="mined", data=str(directory))
        with pytest.raises(ValueError, match=message):
            InputParams(corpora=(corpus,)).mixture(dataset)

    refused(tmp_path / "none", "none holds no dataset")
    _make(tmp_path / "pair", {"it-en": 3}, word="dog and bird")  # a tag more is another vocabulary
    refused(tmp_path / "pair", r"has pair it-en, which .*main does not have\. Prepare that")
    _make(tmp_path / "words", {"de-en": 3}, word="dog and bird")
    refused(tmp_path / "words", r"another source vocabulary than .*main\. Prepare it with --extend")
