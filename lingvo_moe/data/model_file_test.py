"""The declared fields against those of SentencePiece's own module."""

import pytest
from sentencepiece import sentencepiece_model_pb2

from lingvo_moe.data.model_file import CONTROL, MODEL_TYPES, NORMAL, ModelFile
from lingvo_moe.data.vocabulary import train_vocabulary


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("normalization", ["identity", "nmt_nfkc"])
def test_fields_and_bytes_are_those_of_sentencepiece(kind, normalization):
    texts = {"de": ["ein Haus", "zwei Häuser"] * 9}
    trained = train_vocabulary(
        texts, 290, tags=["de"], normalization=normalization, model_type=kind
    )
    theirs = sentencepiece_model_pb2.ModelProto.FromString(trained.model_bytes)
    ours = ModelFile.FromString(trained.model_bytes)
    assert ours.SerializeToString() == trained.model_bytes
    assert [(p.piece, p.score, p.type) for p in ours.pieces] == [
        (p.piece, p.score, p.type) for p in theirs.pieces
    ]
    assert {p.type for p in ours.pieces} >= {NORMAL, CONTROL}
    assert MODEL_TYPES[ours.trainer_spec.model_type] == kind
    assert ours.normalizer_spec.name == normalization == trained.normalization
    for model in (ours, theirs):
        model.pieces.add(piece="x", score=-1.5, type=NORMAL)
        model.trainer_spec.vocab_size = len(model.pieces)
        rules = model.normalizer_spec
        rules.add_dummy_prefix = rules.remove_extra_whitespaces = False
        rules.name, rules.precompiled_charsmap = "identity", b""
    assert ours.SerializeToString() == theirs.SerializeToString()
