import random
import re

import numpy as np
import pytest

from lingvo_moe.data.dataset import Dataset, Example, PairInfo
from lingvo_moe.data.mixture import Stream
from lingvo_moe.data.modifiers.base import Body, Modifier, ModifierContext
from lingvo_moe.data.modifiers.copying import Copying
from lingvo_moe.data.modifiers.merging import Merging
from lingvo_moe.data.modifiers.numbers import Numbers
from lingvo_moe.data.packing import Shape
from lingvo_moe.data.pipeline import InputParams, TrainInput
from lingvo_moe.data.records import write_records
from lingvo_moe.data.virtual_shard import Reader
from lingvo_moe.data.vocabulary import train_vocabulary

TEXTS = [f"The cat number {i} sat, and the dog ({i}) ran away." for i in range(40)]
SOURCES = [f"Die Katze Nummer {i} saß, und der Hund ({i}) lief weg!" for i in range(40)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    directory = tmp_path_factory.mktemp("modifiers")
    vocabulary = train_vocabulary({"en": TEXTS, "de": SOURCES}, 500, tags=["en"])
    tag = vocabulary.tag("en")
    sides = zip(vocabulary.encode(SOURCES), vocabulary.encode(TEXTS), strict=True)
    write_records(
        directory / "x", (Example(np.array([tag, *s, 2]), np.array([*t, 2])) for s, t in sides)
    )
    pair = PairInfo("de-en", "de", "en", 0, {"train": 40}, {"train": {"x": 40}})
    hashes = {"source": vocabulary.sha256, "target": vocabulary.sha256}
    for side in hashes:
        vocabulary.save(directory / f"{side}.model")
    Dataset(directory, (pair,), {"en": tag}, hashes, {}).save()
    return Dataset.load(directory)


def _change(dataset, modifier, number=3, seed=1):
    """Source and target text of an example after the modifier, and its ids."""
    stream = Stream("data", dataset, dataset.pairs[0], 0)
    example = stream.change(stream.example(number), number, modifier, seed)
    assert example.source[0] == dataset.tags["en"]
    assert example.source[-1] == example.target[-1] == 2
    vocabulary = dataset.source_vocabulary
    (source,), (target,) = (
        vocabulary.decode([ids]) for ids in (example.source[1:-1].tolist(), example.target.tolist())
    )
    return source, target, example


def test_merging(dataset):
    assert _change(dataset, Merging())[:2] == (" ".join(SOURCES[3:5]), " ".join(TEXTS[3:5]))
    joined = {_change(dataset, Merging(most=4), seed=seed)[1] for seed in range(30)}
    assert joined == {" ".join(TEXTS[3:end]) for end in (5, 6, 7)}
    assert _change(dataset, Merging(), number=39)[:2] == (SOURCES[39], TEXTS[39])


def test_copying(dataset):
    source, target, example = _change(dataset, Copying())
    assert source == target == TEXTS[3]
    assert example.source[1:].tolist() == example.target.tolist()


def test_copying_between_two_vocabularies():
    """The copy has the text of the target in pieces of the source's vocabulary."""
    german = train_vocabulary({"de": SOURCES}, 500)
    english = train_vocabulary({"en": TEXTS}, 320)
    body = Body(german.encode([SOURCES[3]])[0], english.encode([TEXTS[3]])[0])
    context = ModifierContext((german, english), lambda k: None, random.Random(0))
    copied = Copying().apply(body, context)
    assert copied.target == body.target
    assert german.decode([copied.source]) == [TEXTS[3]]
    assert copied.source != body.target


def _with_numbers(source, target):
    """Both sides after Numbers, with ten seeds."""
    vocabulary = train_vocabulary({"en": [*TEXTS, source, target]}, 350)
    body = Body(*vocabulary.encode([source, target]))
    for seed in range(10):
        context = ModifierContext((vocabulary, vocabulary), lambda k: None, random.Random(seed))
        yield vocabulary.decode(Numbers().apply(body, context))


def test_a_common_number_becomes_another_in_the_same_digits():
    """The 7, which the sides do not have equally often, stays."""
    for source, target in _with_numbers("Seite 2019, 7 Jahre", "page ٢٠١٩, twice 33, 7 of 7"):
        number = re.fullmatch(r"Seite ([0-9]{4}), 7 Jahre", source)[1]
        assert number != "2019"
        arabic = number.translate({48 + i: 0x660 + i for i in range(10)})
        assert target == f"page {arabic}, twice 33, 7 of 7"


def test_a_text_without_a_common_number_gets_one():
    forms = set()
    for source, target in _with_numbers("Die Katze saß", "The cat sat"):
        assert source == target.replace("The cat sat", "Die Katze saß")
        forms.add(re.sub("[0-9]{1,6}", "N", target))
    assert forms == {"N The cat sat", "The cat sat N", "The cat sat (N)"}


class Doubled(Modifier):
    """Puts the target twice."""

    def apply(self, body: Body, context: ModifierContext) -> Body:
        return body._replace(target=body.target * 2)


class Emptied(Modifier):
    """Leaves nothing of the source."""

    def apply(self, body: Body, context: ModifierContext) -> Body:
        return body._replace(source=[])


def test_a_side_is_never_empty(dataset):
    assert _change(dataset, Emptied())[:2] == (SOURCES[3], TEXTS[3])


def _texts(dataset, batch):
    """The target texts of a batch."""
    ids = batch.target_ids[batch.target_segment_ids > 0].tolist()
    ends = [i + 1 for i, piece in enumerate(ids) if piece == 2]
    parts = [ids[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    return dataset.target_vocabulary.decode(parts)


def test_the_share_of_changed_examples_and_resuming(dataset):
    modifiers = (Doubled(share=0.3), Copying(share=0.5))
    params = InputParams(batch_size=8, source_length=80, target_length=160, modifiers=modifiers)
    whole = TrainInput(dataset, params, seed=1)
    batches, states = [], []
    for _ in range(60):
        states.append(whole.state())
        batches.append(whole.next_batch())
    texts = [text for batch in batches for text in _texts(dataset, batch)]
    assert len(texts) > 400
    assert set(texts) <= {*TEXTS, *(f"{text} {text}" for text in TEXTS)}
    doubled = np.mean([text not in TEXTS for text in texts])
    assert doubled == pytest.approx(0.3, abs=0.1)
    for start in (1, 7, 20):
        resumed = TrainInput(dataset, params, seed=1)
        resumed.restore(states[start])
        for batch in batches[start : start + 4]:
            found = resumed.next_batch()
            assert all(np.array_equal(found[name], batch[name]) for name in batch)


def test_a_changed_example_fits_a_row_with_the_tag_of_its_corpus(dataset):
    def read(tag, length):
        stream = Stream("bt", dataset, dataset.pairs[0], 0, 1, tag)
        reader = Reader([stream], 1, Shape(1, length, 200), (Merging(share=1.0),))
        return len(reader.read(np.array([0]), np.array([0]))[0].example.source)

    plain, merged = read((), 2), read((), 200)
    assert plain < merged
    assert read((7, 8), merged + 2) == merged + 2
    assert read((7, 8), merged + 1) == plain + 2
