import types

import pytest

from lingvo_moe.serving.formats import base as formats
from lingvo_moe.serving.formats.base import Format
from lingvo_moe.serving.formats.storage import STORAGES
from lingvo_moe.serving.report import comparable_pairs, compare, compare_sizes
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


def test_an_export_of_pairs_without_lines_is_refused():
    examples = {"qna-en": {"test": 5}, "qne-en": {"dev": 5}, "qni-en": {"test": 5}}
    dataset = types.SimpleNamespace(
        directory="data", pair=lambda name: types.SimpleNamespace(examples=examples[name])
    )
    model_dir = types.SimpleNamespace(translated_pairs=tuple(examples))
    model_dir.for_test_set = lambda data: (model_dir, data)
    assert comparable_pairs(model_dir, dataset, "test") == ["qna-en", "qni-en"]
    assert comparable_pairs(model_dir, dataset, "test", ("qne-en", "qni-en")) == ["qni-en"]
    with pytest.raises(ValueError, match=r"no test lines of .*\(qne-en\)"):
        comparable_pairs(model_dir, dataset, "test", ("qne-en",))


class Stub(Format):
    """An export of 1,500,000 bytes; in float32 4,000,000 and the manifest."""

    def check(self, model_dir, output, pruning):
        pass

    def write(self, model_dir, theta, step, directory):
        size = 1_500_000 if self.storage.widens else 4_000_000
        (directory / "weights").write_bytes(bytes(size))

    def open(self, path):
        raise NotImplementedError


def test_the_size_beside_that_of_float32(monkeypatch, tmp_path):
    monkeypatch.setattr(formats, "read_model", lambda model_dir, step, pruning: (None, None, step))
    chosen, output = Stub(STORAGES["int8"]), tmp_path / "export"
    chosen.export(None, output, 7)
    assert compare_sizes(chosen, None, output, 7) == (
        "1.50 MB, 37.5% of the whole model in float32 (4.00 MB)"
    )
    assert list(tmp_path.iterdir()) == [output]
