import types

import pytest

from lingvo_moe.serving.format import directory_size
from lingvo_moe.serving.report import check_comparable, compare
from lingvo_moe.tasks.translator import Translation
from lingvo_moe.testing import tiny_world

PAIR = "qna-en"


def translator(texts):
    """Gives these texts, whatever it is to translate."""

    def translate(sentences, *_, **__):
        return [[Translation(text, 0.0)] for text in texts[: len(sentences)]]

    return translate


REFERENCES = [e.target_text for e in tiny_world.dataset().examples("test", PAIR)]
WRONG = ["nothing of it"] * len(REFERENCES)


def test_a_row_for_each_pair_and_the_mean():
    table = compare(
        translator(REFERENCES), translator(WRONG), tiny_world.dataset(), "test", [PAIR], print
    )
    lines = str(len(REFERENCES))
    assert table.rows == [(PAIR, lines, "100.00", "0.00", "-100.00")]
    assert table.more_rows == [("mean", lines, "100.00", "0.00", "-100.00")]


def test_a_dataset_without_lines_is_refused():
    dataset = types.SimpleNamespace(
        directory="data", pair=lambda name: types.SimpleNamespace(examples={"train": 5})
    )
    model_dir = types.SimpleNamespace(pairs=(PAIR,))
    model_dir.for_dataset = lambda _: model_dir
    with pytest.raises(ValueError, match="data has no dev lines; nothing to compare"):
        check_comparable(model_dir, dataset, "dev")


def test_directory_size(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"12345")
    (tmp_path / "c").write_bytes(b"67")
    assert directory_size(tmp_path) == 7
