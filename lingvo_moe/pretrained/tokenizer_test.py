"""The ids of M2M-100's tokenizer, on files made by hand."""

import json

from lingvo_moe.nn.special_tokens import UNK
from lingvo_moe.pretrained import tokenizer


def test_characters_that_sentencepiece_does_not_know_have_their_entries(tmp_path):
    """An entry of one character is written; a longer one that no text is cut into is control."""
    piece = "▁the"
    ids = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, piece: 4, "☃": 5, "▁unheard": 6}
    (tmp_path / tokenizer.PIECES).write_text(json.dumps(ids))
    messages = tokenizer._messages()
    model = messages.ModelProto()
    model.pieces.add(piece=piece, score=-2.0)
    model.pieces.add(piece="▁", score=-3.0)
    pieces = tokenizer._m2m100(tmp_path, model)
    kinds = messages.ModelProto.SentencePiece
    assert [pieces[i].piece for i in (4, 5, 6)] == [piece, "☃", "▁unheard"]
    assert [pieces[i].type for i in (4, 5, 6)] == [kinds.NORMAL, kinds.NORMAL, kinds.CONTROL]
    # Less likely than every piece, so that no text is cut differently.
    assert pieces[5].score < -3.0
    assert pieces[4].score == -2.0
    assert pieces[UNK].type == kinds.UNKNOWN
