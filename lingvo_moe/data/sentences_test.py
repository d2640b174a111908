import pytest

from lingvo_moe.data.sentences import (
    join_sentences,
    pack_sentences,
    split_into_parts,
    split_sentences,
)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        ("one", ["one"]),
        ("One. Two! ", ["One. ", "Two! "]),
        ('He has 3.5 e.g.? "Yes."  (No…) So', ["He has 3.5 e.g.? ", '"Yes."  ', "(No…) ", "So"]),
        ("一。二！」三", ["一。", "二！」", "三"]),
        ("क। ख", ["क। ", "ख"]),
        (". . .", [". ", ". ", "."]),
        ("." * 100_000, ["." * 100_000]),
    ],
)
def test_texts_are_split_after_the_ends_of_sentences(text, sentences):
    assert split_sentences(text) == sentences
    assert "".join(sentences) == text


def test_join():
    assert join_sentences(["One. ", "", " Two."]) == "One. Two."
    assert join_sentences(["一。", "二」", "三"]) == "一。二」三"


def test_sentences_are_packed_into_as_few_parts_as_possible():
    # 3 + 2 fit into 5; 6 is too long for any part; 1 + 4 fit again.
    sentences, lengths = ["a. ", "b. ", "c. ", "d. ", "e."], [3, 2, 6, 1, 4]
    assert pack_sentences(sentences, lengths, 5) == ["a. b.", "c.", "d. e."]


def test_each_part_leaves_room_for_the_prefix():
    # In letters: the prefix takes 2 of 9, and 3 + 3 fit into 7 together.
    parts = split_into_parts("a. b. c. d.", "p ", 9, lambda texts: list(map(len, texts)))
    assert parts == ["a. b.", "c. d."]
