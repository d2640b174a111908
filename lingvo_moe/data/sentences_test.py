import pytest

from lingvo_moe.data.sentences import join_sentences, split_sentences


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
