import json

import numpy as np
import pytest

from lingvo_moe.data import blocks
from lingvo_moe.data.card import length_histogram, length_quantiles
from lingvo_moe.data.cleaning.damaged import Damaged
from lingvo_moe.data.cleaning.length_ratio import LengthRatio
from lingvo_moe.data.prepare import PrepareParams, prepare
from lingvo_moe.testing.pages import parse_page

LINES = {
    "train": [
        ("der Hund", "the dog"),
        ("", "nothing"),
        ("die <b>Katze", "the cat"),
        ("der Hund", "the dog"),
        ("kaputt\ufffd", "broken"),
        ("das", "x" * 400),
        ("ein Vogel", "a bird"),
        ("viele viele viele viele viele Worte", "many many many many many words"),
        ("猫 und", "cat and"),
    ],
    "dev": [("ein Vogel", "one bird")],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("card")
    for split, lines in LINES.items():
        (directory / "corpus" / split).mkdir(parents=True)
        text = "".join(f"{source}\t{target}\n" for source, target in lines)
        (directory / "corpus" / split / "de-en.tsv").write_text(text)
    params = PrepareParams(
        source_vocab_size=300,
        target_vocab_size=300,
        character_coverage=0.98,
        cleaning=(Damaged(), LengthRatio()),
        max_length=24,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "_BLOCK_LINES", 2)
        return prepare(directory / "corpus", directory / "data", params, card=True)


def test_counts_are_those_of_the_examples(made):
    card = json.loads((made.directory / "card/card.json").read_text())
    kept = [("der Hund", "the dog"), ("die <b>Katze", "the cat"), ("猫 und", "cat and")]
    for i, (side, language) in enumerate((("source", "de"), ("target", "en"))):
        vocabulary = getattr(made, f"{side}_vocabulary")
        texts = [line[i] for line in kept]
        pieces = [vocabulary.pieces(ids) for ids in vocabulary.encode(texts)]
        assert card["counts"][side] == {
            language: {
                "pieces": sum(map(len, pieces)),
                "bytes": sum(piece.startswith("<0x") for row in pieces for piece in row),
                "words": sum(len(text.split()) for text in texts),
                "characters": sum(map(len, texts)),
            }
        }
        lengths = sorted(len(getattr(e, side)) for e in made.examples("train", "de-en"))
        assert card["lengths"]["de-en"][side] == [lengths[1], lengths[2]]
    assert card["counts"]["source"]["de"]["bytes"] == 3  # 猫 has no piece


def test_every_reason_has_an_example_with_its_line(made):
    card = json.loads((made.directory / "card/card.json").read_text())
    assert {reason: lines[0][1] for reason, lines in card["dropped"].items()} == {
        "empty": 2,
        "duplicates": 4,
        "damaged": 5,
        "length_ratio": 6,
        "held_out_in_train": 7,
        "too_long": 8,
    }
    assert all(made.checks["de-en"][reason] == 1 for reason in card["dropped"])


def test_the_page_escapes_and_shortens_texts(made):
    cells = parse_page((made.directory / "card/index.html").read_text()).cells
    assert "kaputt\ufffd" in cells
    assert "x" * 160 + "…" in cells
    assert cells[cells.index("de-en") :][:4] == ["de-en", "3", "1", "0"]
    card = json.loads((made.directory / "card/card.json").read_text())
    lengths = card["lengths"]["de-en"]
    shown = [cell for cell in cells if cell.strip()]
    assert shown[-4:] == [str(n) for side in ("source", "target") for n in lengths[side]]
    pieces, single, words, characters = card["counts"]["source"]["de"].values()
    shares = (pieces / characters, pieces / words, 100 * single / pieces)
    assert cells[cells.index("de (source)") :][1:4] == [f"{share:.2f}" for share in shares]


def test_each_count_is_explained(made):
    cells = parse_page((made.directory / "card/index.html").read_text()).cells
    meanings = {
        "length_ratio": "One side has many times the letters of the other",
        "targets_changed": "lines of dev and test whose target the vocabulary cannot write exactly",
        "targets_in_train": "lines of dev and test whose target is in train of any pair",
    }
    for kind, meaning in meanings.items():
        assert cells[cells.index(kind) + 1] == meaning
    assert set(made.checks["de-en"]) <= set(cells)


def test_lengths_are_counted_up_to_the_longest():
    histogram = length_histogram(
        [np.array([[1, 2], [3, 2]]), np.array([[1, 5]]), np.empty((0, 2), int)]
    )
    assert histogram.tolist() == [[0, 2, 0, 1, 0, 0], [0, 0, 2, 0, 0, 1]]
    assert length_quantiles(histogram).tolist() == [[1, 3], [2, 5]]
    assert length_quantiles(np.zeros((2, 1))).tolist() == [[0, 0], [0, 0]]
