import dataclasses

import numpy as np
import pytest

from lingvo_moe.data.curriculum import Corpus, Stage, identity
from lingvo_moe.data.dataset import Dataset, Example, PairInfo
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
        pairs.append(PairInfo(name, *languages, index, {"train": size}, {"train": [shard]}))
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


def _at(params, dataset, step):
    curriculum = params.curriculum(dataset)
    names = [stream.name for stream in curriculum.streams]
    return {n: p for n, p in zip(names, curriculum.at(step).tolist(), strict=True) if p}


def test_a_corpus_by_its_weight_then_a_pair_of_it_by_size(dataset, mined):
    params = InputParams(temperature=1.0, corpora=(mined,))
    main = {"de-en": 0.25 * 0.5, "fr-en": 0.25 * 0.25, "sw-en": 0.25 * 0.25}
    more = {"fr-en (mined)": 0.75 * 0.75, "sw-en (mined)": 0.75 * 0.25}
    assert _at(params, dataset, 0) == pytest.approx(main | more)


def test_a_named_pair_may_have_text_in_a_further_corpus_alone(tmp_path):
    dataset = _make(tmp_path / "main", {"de-en": 20, "fr-en": 10, "sw-en": 0})
    _make(tmp_path / "mined", {"sw-en": 10})
    mined = Corpus(name="mined", data=str(tmp_path / "mined"))
    named = InputParams(pairs=("de-en", "sw-en"), corpora=(mined,))
    assert _at(named, dataset, 0) == pytest.approx({"de-en": 0.5, "sw-en (mined)": 0.5})
    only = InputParams(pairs=("sw-en",), corpora=(mined,))
    assert _at(only, dataset, 0) == {"sw-en (mined)": 1.0}
    _make(tmp_path / "mined", {"de-en": 10})
    with pytest.raises(ValueError, match=r"for sw-en in .*main and in the corpora mined\. Prepare"):
        only.curriculum(dataset)


def test_examples_are_counted_in_all_corpora(dataset, mined):
    everything = InputParams(corpora=(mined,)).curriculum(dataset).examples
    assert everything == {"de-en": 20, "fr-en": 10 + 30, "sw-en": 10 + 10}
    some = InputParams(corpora=(mined,), pair_factors=(("de", 0.0),), pairs=("de-en", "fr-en"))
    assert some.curriculum(dataset).examples == {"fr-en": 10 + 30}


def test_stages_by_hand(dataset, mined):
    stages = (
        Stage(from_step=10, pairs=("de-en", "fr-en"), weights=(("mined", 1.0),)),
        Stage(from_step=30, temperature=1e9, weights=(("data", 0.0),)),
    )
    params = InputParams(temperature=1.0, corpora=(mined,), stages=stages)
    second = {"de-en": 0.5 * 2 / 3, "fr-en": 0.5 / 3, "fr-en (mined)": 0.5}
    assert _at(params, dataset, 9) == _at(params, dataset, 0)
    assert _at(params, dataset, 10) == _at(params, dataset, 29) == pytest.approx(second)
    third = {"fr-en (mined)": 0.5, "sw-en (mined)": 0.5}  # pairs and mined as before step 10
    assert _at(params, dataset, 30) == pytest.approx(third)
    curriculum = params.curriculum(dataset)
    at = [curriculum.at(step) for step in range(40)]
    for steps in (1, 10, 17, 40):
        assert curriculum.shares(steps) == pytest.approx(np.mean(at[:steps], axis=0))


def _first_pieces(batch):
    """The second id of each source, which tells its pair."""
    starts = np.flatnonzero(batch.source_ids.ravel() == 4)
    return set(batch.source_ids.ravel()[starts + 1].tolist())


def test_batches_change_at_the_step_and_a_resumed_input_goes_on_the_same(dataset):
    stages = (Stage(from_step=4, pairs=("sw-en",)), Stage(from_step=8, pairs=("de-en", "fr-en")))
    params = InputParams(batch_size=2, source_length=30, pairs=("de-en",), stages=stages)
    whole = TrainInput(dataset, params, seed=1)
    states, batches = [], []
    for _ in range(12):
        states.append(whole.state())
        batches.append(whole.next_batch())
    expected = [{30}] * 4 + [{32}] * 4 + [{30, 31}] * 4
    assert [_first_pieces(batch) for batch in batches] == expected
    for start, state in enumerate(states):
        resumed = TrainInput(dataset, params, seed=1)
        resumed.restore(state)
        for batch in batches[start : start + 6]:
            found = resumed.next_batch()
            assert all(np.array_equal(found[name], batch[name]) for name in batch)
        resumed.restore(state)
        resumed.check()
        if start < 11:
            assert np.array_equal(resumed.next_batch().source_ids, batches[start].source_ids)


def test_a_tag_follows_the_tag_of_the_language(dataset, mined):
    tagged = dataclasses.replace(mined, tag="<bt>")
    stages = (Stage(from_step=1, weights=(("data", 0.0),)),)
    params = InputParams(batch_size=2, corpora=(tagged,), stages=stages)
    batches = TrainInput(dataset, params, seed=1)
    batches.next_batch()
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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"stages": (Stage(from_step=9), Stage(from_step=9))},
            r"in order of from_step, each step once, got \[9, 9\]",
        ),
        (
            {"corpora": (Corpus(name="data", data="x"),)},
            "different names, other than 'data'; used twice",
        ),
    ],
)
def test_bad_params(fields, message):
    with pytest.raises(ValueError, match=message):
        InputParams(**fields)


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (Stage(from_step=1, pairs=("xx-en",)), "Unknown pair 'xx-en'"),
        (Stage(from_step=7, weights=(("data", 0.0),)), "from step 7.* leaves out all pairs"),
    ],
)
def test_stages_that_do_not_fit_the_data(dataset, stage, message):
    with pytest.raises(ValueError, match=message):
        InputParams(stages=(stage,)).curriculum(dataset)


def test_corpora_that_do_not_fit(dataset, tmp_path):
    def refused(directory, message):
        corpus = Corpus(name="mined", data=str(directory))
        with pytest.raises(ValueError, match=message):
            InputParams(corpora=(corpus,)).curriculum(dataset)

    refused(tmp_path / "none", "Corpus mined: .*none holds no dataset")
    _make(tmp_path / "pair", {"it-en": 3}, word="dog and bird")  # a tag more is another vocabulary
    refused(tmp_path / "pair", r"has pair it-en, which .*main does not have\. Prepare that")
    _make(tmp_path / "words", {"de-en": 3}, word="dog and bird")
    refused(tmp_path / "words", r"another source vocabulary than .*main\. Prepare it with --extend")
