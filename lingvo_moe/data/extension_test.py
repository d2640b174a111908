import collections.abc
import tracemalloc

import pytest

from lingvo_moe.data.extension import extend_vocabulary, find_parents
from lingvo_moe.data.vocabulary import train_vocabulary

ENGLISH = ["the cat sat on the mat", "a dog ate the cat", "the dog saw a mat"] * 20
# In Georgian letters, and with an English name.
GEORGIAN = [line.translate({ord("a") + i: 0x10D0 + i for i in range(26)}) for line in ENGLISH]
NEW = {"en": ENGLISH, "ka": [f"{line} mat" for line in GEORGIAN]}


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_words_of_a_new_script_become_pieces(kind):
    old = train_vocabulary({"en": ENGLISH}, 330, tags=["en"], model_type=kind)
    new = extend_vocabulary(old, NEW, 40, tags=["en", "ka"])
    assert new.pieces(range(old.size)) == old.pieces(range(old.size))
    more = new.pieces(range(old.size, new.size))
    assert more[-1] == "<2ka>"
    letters = {letter for line in GEORGIAN for letter in line} - {" "}
    assert set(more[: len(letters)]) == letters  # single characters first
    assert len(more) <= 41
    assert new.encode(ENGLISH) == old.encode(ENGLISH)
    ((*ids,),) = new.encode([GEORGIAN[0]])
    assert len(ids) < len(GEORGIAN[0]) + 1  # some pieces have several characters
    assert new.decode([ids]) == GEORGIAN[:1]
    assert extend_vocabulary(new, NEW, 40, tags=["ka"]) is new


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_new_digits_are_pieces_of_their_own(kind):
    old = train_vocabulary({"en": [f"{line} 42" for line in ENGLISH]}, 330, model_type=kind)
    new = extend_vocabulary(old, {"ar": ["١٢٣٤ 12 34"] * 30, "en": ENGLISH}, 10)
    assert new.pieces(new.encode(["(٨٢٥٥٨) 42"])[0])[-9:-4] == list("٨٢٥٥٨")
    assert new.encode(ENGLISH) == old.encode(ENGLISH)


def test_digits_that_are_read_as_others_stay_so():
    lines = [f"{line} ১০৭" for line in ENGLISH]
    old = train_vocabulary({"bn": lines}, 330, ascii_digits=tuple("০১২৩৪৫৬৭৮৯"))
    new = extend_vocabulary(old, {"bn": lines, "ka": GEORGIAN}, 40)
    assert new.size > old.size
    assert new.encode(lines) == old.encode(lines) == old.encode([f"{x} 107" for x in ENGLISH])


class _Lines(collections.abc.Sequence):
    """Lines that are made when they are read."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError
        return f"{GEORGIAN[index % len(GEORGIAN)]} {index}"


def test_memory_does_not_grow_with_the_text():
    old = train_vocabulary({"en": ENGLISH}, 330)
    peaks = []
    for count in (2_000, 20_000):
        tracemalloc.start()
        extend_vocabulary(old, {"ka": _Lines(count)}, 40, max_sentences=500)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 20 * 18_000  # bytes a line; the text has about 70


def test_parents():
    old = train_vocabulary({"en": ENGLISH}, 330, tags=["de", "en"])
    new = extend_vocabulary(old, NEW, 40, tags=["ka"])
    parents = find_parents(new, old, {"ka": "de"})
    assert parents[: old.size] == [(i,) for i in range(old.size)]
    assert parents[new.tag("ka")] == (old.tag("de"),)
    assert find_parents(new, old, {})[new.tag("ka")] == (old.tag("de"), old.tag("en"))
    letter = old.size  # three bytes of UTF-8
    text = new.pieces([letter])[0]
    assert old.pieces(parents[letter]) == [f"<0x{byte:02X}>" for byte in text.encode()]
    with pytest.raises(ValueError, match="<2fr>"):
        find_parents(new, old, {"ka": "fr"})
