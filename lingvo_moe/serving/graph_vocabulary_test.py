"""A vocabulary in a graph does what the Vocabulary does."""

import re

import pytest
import tensorflow as tf

from lingvo_moe.data.model_file import ModelFile
from lingvo_moe.data.vocabulary import SPACE, Vocabulary, train_vocabulary
from lingvo_moe.nn.special_tokens import BOS, EOS, UNK
from lingvo_moe.serving.graph_vocabulary import GraphVocabulary, rstrip

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
    contents = vocabulary.ids_by_content
    byte, space = contents[b" "]
    the = next(ids[0] for content, ids in contents.items() if re.match(rb" \w", content))
    lists = [[], [space], [space, the], [space, space, the], [the, space], [BOS, space, the, EOS]]
    lists += [[byte, the], [the, byte, space], [UNK, the], [BOS], [BOS, BOS, space, space]]
    rows = tf.ragged.constant(lists, dtype=tf.int32)
    decoded = [text.decode() for text in tf.function(graph.decode)(rows).numpy()]
    assert decoded == vocabulary.decode(rows.to_list())
    pieces = tf.function(graph.pieces)(tf.constant([[3, 5], [270, 9999]])).numpy().tolist()
    flat = [piece.decode() for row in pieces for piece in row]
    assert flat == vocabulary.pieces([3, 5, 270, vocabulary.size - 1])


@pytest.mark.parametrize("text", ["a ", "a\u3000\xa0 ", " a b", "", "  "])
def test_spaces_are_removed_as_in_python(text):
    assert rstrip(tf.constant(text)).numpy().decode() == text.rstrip()


@pytest.mark.parametrize("normalization", ["nfc", "identity"])
def test_all_pieces_may_be_whole_words(normalization):
    """Each of these words is one piece with its space; no other piece has text but bytes."""
    words = ["red", "green", "blue"]
    vocabulary = train_vocabulary({"en": words * 5}, 300, normalization=normalization)
    whole = ModelFile.FromString(vocabulary.model_bytes)
    kept = [p for p in whole.pieces if p.type != 1]
    kept += [type(kept[0])(piece=SPACE + word, score=-1.0) for word in words]
    del whole.pieces[:]
    whole.pieces.extend(kept)
    vocabulary = Vocabulary(whole.SerializeToString())
    ids = vocabulary.encode(["red", "green blue", "  blue  red"])
    graph = GraphVocabulary(vocabulary, "words")
    decoded = graph.decode(tf.ragged.constant(ids, tf.int32, row_splits_dtype=tf.int64))
    assert [text.decode() for text in decoded.numpy()] == vocabulary.decode(ids)
