"""A vocabulary in a graph does what the Vocabulary does."""

import pytest
import tensorflow as tf

from lingvo_moe.data.vocabulary import train_vocabulary
from lingvo_moe.nn.special_tokens import BOS, EOS, UNK
from lingvo_moe.serving.graph import GraphVocabulary, rstrip

TEXTS = ["the cat sat", "der Hund", "ab ab abc", "漢字かな", "x٣"]


@pytest.fixture(scope="module", params=["nfc", "identity", "nmt_nfkc_cf"])
def vocabulary(request):
    texts = {"en": TEXTS * 20}
    return train_vocabulary(texts, 320, tags=["en"], normalization=request.param)


@pytest.fixture(scope="module")
def graph(vocabulary):
    return GraphVocabulary(vocabulary, "target")


def test_ids_and_pieces(vocabulary, graph):
    encode = tf.function(graph.encode)
    odd = [" \ufeffe\u0301\u0323 \xa0x\u200e", "\u1112\u1161\u11ab", "a\u200bក\u200bក", "\x00\x01"]
    assert encode(tf.constant(odd)).to_list() == vocabulary.encode(odd)
    ids = encode(tf.constant(TEXTS))
    assert ids.to_list() == vocabulary.encode(TEXTS)
    assert graph.count(tf.constant(TEXTS)).numpy().tolist() == [len(row) for row in ids.to_list()]
    decoded = [text.decode() for text in tf.function(graph.decode)(ids).numpy()]
    assert decoded == vocabulary.decode(ids.to_list())
    byte, space, the = vocabulary.spaces[0], vocabulary.spaces[-1], ids[0].numpy()[-1].item()
    lists = [[], [the, space], [BOS, the, EOS], [the, byte, the], [UNK, the], [BOS]]
    rows = tf.ragged.constant(lists, dtype=tf.int32)
    decoded = [text.decode() for text in tf.function(graph.decode)(rows).numpy()]
    assert decoded == vocabulary.decode(rows.to_list())
    pieces = tf.function(graph.pieces)(tf.constant([[3, 5], [270, 9999]])).numpy().tolist()
    flat = [piece.decode() for row in pieces for piece in row]
    assert flat == vocabulary.pieces([3, 5, 270, vocabulary.size - 1])


@pytest.mark.parametrize("text", ["a ", "a\u3000\xa0 ", " a b", "", "  "])
def test_spaces_are_removed_as_in_python(text):
    assert rstrip(tf.constant(text)).numpy().decode() == text.rstrip()
