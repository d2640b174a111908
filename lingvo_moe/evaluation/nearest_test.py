"""The search for similar sentences, beside a slow one."""

import math
import random
from collections import Counter

import pytest

from lingvo_moe.evaluation.nearest import nearest


def trigrams(text):
    text = f" {text.lower()} "
    return Counter(text[i : i + 3] for i in range(len(text) - 2))


def slow_nearest(train, sentences):
    """The definition, sentence by sentence."""
    bags = [trigrams(text) for text in train]
    frequency = Counter(gram for bag in bags for gram in bag)
    idf = {gram: math.log((1 + len(train)) / (1 + n)) + 1 for gram, n in frequency.items()}
    found = []
    for sentence in sentences:
        query, best, place = trigrams(sentence), 0.0, 0
        for i, bag in enumerate(bags):
            product = sum(n * query[gram] * idf[gram] ** 2 for gram, n in bag.items())
            norm = math.sqrt(sum((n * idf[gram]) ** 2 for gram, n in bag.items()))
            cosine = product / norm if norm else 0.0
            if cosine > best + 1e-12:
                best, place = cosine, i
        found.append(place)
    return found


@pytest.mark.parametrize("block", [1, 7, 100])
def test_it_finds_what_a_slow_search_finds(block):
    rng = random.Random(block)
    words = ["ab", "abc", "bca", "Xy", "é", "문장", "譯文", "😀", "\ud800", "a\0b"]
    texts = [" ".join(rng.choices(words, k=rng.randrange(7))) for _ in range(90)]
    train, sentences = texts[:60], [*texts[60:], train_twin := texts[3], "zzz", ""]
    blocks = [train[i : i + block] for i in range(0, len(train), block)]
    assert nearest(blocks, sentences).tolist() == slow_nearest(train, sentences)
    assert train[nearest(blocks, [train_twin])[0]] == train_twin


def test_by_hand():
    # "list files" shares more with "list all files" than with "remove a file"; of the two equal
    # ones the first is taken, also from an earlier block.
    blocks = [["remove a file", "List all files"], [], ["list all files"]]
    assert nearest(blocks, ["list files", "remove files"]).tolist() == [1, 0]


def test_nothing_in_common_and_nothing_to_compare():
    assert nearest([["abc"], ["xyz"]], ["", "…"]).tolist() == [0, 0]
    assert nearest([["abc"]], []).tolist() == []
