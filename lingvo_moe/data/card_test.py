from lingvo_moe.data import prepare_pair
from lingvo_moe.data.cleaning.rules import Damaged, LengthRatio
from lingvo_moe.data.prepare import PrepareParams, prepare
from lingvo_moe.testing.pages import parse_page

TRAIN = [
    ("der Hund", "the dog"),
    ("", "nothing"),
    ("die <b>Katze", "the cat"),
    ("der Hund", "the dog"),
    ("kaputt\ufffd", "broken"),
    ("das", "x" * 400),
    ("ein Vogel", "a bird"),
    ("viele viele viele viele viele Worte", "many many many many many words"),
]


def test_every_reason_has_an_example_with_its_line(tmp_path, monkeypatch):
    for split, lines in {"train": TRAIN, "dev": [("ein Vogel", "one bird")]}.items():
        (tmp_path / "corpus" / split).mkdir(parents=True)
        text = "".join(f"{source}\t{target}\n" for source, target in lines)
        (tmp_path / "corpus" / split / "de-en.tsv").write_text(text)
    rules = (Damaged(), LengthRatio())
    sizes = {"source_vocab_size": 300, "target_vocab_size": 300, "max_length": 24}
    monkeypatch.setattr(prepare_pair, "_BLOCK_LINES", 2)
    prepare(
        tmp_path / "corpus", tmp_path / "data", PrepareParams(cleaning=rules, **sizes), card=True
    )
    cells = parse_page((tmp_path / "data/card/index.html").read_text()).cells
    for reason, line in {
        "empty": 2,
        "duplicates": 4,
        "damaged": 5,
        "length_ratio": 6,
        "held_out_in_train": 7,
        "too_long": 8,
    }.items():
        assert cells[cells.index(f"Left out: {reason}") :].index(f"de-en, line {line}") == 4
    assert "x" * 160 + "…" in cells
    assert cells[cells.index("de-en") :][:4] == ["de-en", "2", "1", "0"]
