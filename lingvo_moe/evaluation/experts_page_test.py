"""Tests of the page: what is in it, well formed, escaped, the same numbers in the JSON."""

import dataclasses
import json

import numpy as np
import pytest

from lingvo_moe.evaluation import experts_page
from lingvo_moe.evaluation.experts import analyze
from lingvo_moe.evaluation.experts_page import draw_load, format_experts, write_experts
from lingvo_moe.testing.pages import parse_page
from lingvo_moe.testing.pictures import pixels
from lingvo_moe.testing.reports import families, make_record


def _write(record, directory):
    write_experts(analyze(record), directory, "my<model>")
    checker = parse_page((directory / "index.html").read_text("utf-8"))
    assert all(link.startswith("data:image/png;base64,") for link in checker.links)
    return " ".join(checker.cells), checker, json.loads((directory / "experts.json").read_text())


def test_the_page_tells_families(tmp_path):
    text, checker, numbers = _write(families(), tmp_path)
    assert "encoder: 2 groups share experts" in text
    assert "decoder: no separate groups of languages" in text
    assert "my<model>: experts" in text
    assert len(checker.links) == 2
    assert {"a1", "a2", "a3"} in map(set, numbers["sides"]["encoder"]["groups"])
    assert [layer["layer"] for layer in numbers["layers"]] == [
        "encoder/layer_01",
        "decoder/layer_01",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {
        "index.html",
        "experts.json",
        "load_encoder_layer_01.png",
        "load_decoder_layer_01.png",
    }


def test_groups_of_chance_are_called_that():
    experts = analyze(families())
    side = experts.sides[0]
    assert "by chance:" not in format_experts(experts)
    layers = [dataclasses.replace(one, mutual_information=one.by_chance) for one in side.layers]
    by_chance = dataclasses.replace(side, layers=tuple(layers))
    assert "by chance:" in format_experts(dataclasses.replace(experts, sides=(by_chance,)))


def test_silent_pairs_and_empty_layers(tmp_path):
    record = make_record(
        [[[3.0, 1], [0, 0], [2, 2]], [[0, 0], [0, 0], [0, 0]]], pairs=["a-en", "b<-en", "c-en"]
    )
    text, checker, numbers = _write(record, tmp_path)
    assert "No tokens in dev: b<." in text
    assert "–" in text
    assert "b<" not in checker.tags
    assert numbers["without_tokens"] == ["b<"]
    assert numbers["layers"][1]["entropy"] is None


def test_pictures_are_drawn_in_the_order_of_their_labels(monkeypatch):
    drawn = {}

    def remember(values, *labels):
        drawn.setdefault("load", (values, *labels))
        return b""

    monkeypatch.setattr(experts_page, "draw_load", remember)
    record = families()
    experts_page.draw_all(analyze(record))
    names = [pair.removesuffix("-en") for pair in record.pairs]
    shares, languages, numbers, _ = drawn["load"]
    # Each family's own expert is on its side.
    assert numbers[0] == (0 if languages[0].startswith("a") else 3)
    for row, language in enumerate(languages):
        for column, expert in enumerate(numbers):
            count = record.pair_load[0, names.index(language), expert]
            assert shares[row, column] == pytest.approx(count / 100)
    assert {name[0] for name in languages[:3]} != {name[0] for name in languages[3:]}


def test_the_table_for_a_terminal():
    lines = format_experts(analyze(families())).splitlines()
    # The busiest expert has 80 + 81 + 82 + 5 + 6 + 7 = 261 of 600 choices, 1.74 times a quarter.
    # MaxVio is that minus 1.
    assert lines[2].split()[:4] == ["encoder/layer_01", "4", "0.74", "0"]
    assert len({len(line) for line in lines[:4]}) == 1


def _languages(count):
    return [f"x{i}" for i in range(count)]


def test_rows_are_languages_and_columns_are_experts():
    def picture(language, expert):
        shares = np.zeros((4, 8))
        shares[language, expert] = 1
        return pixels(draw_load(shares, _languages(4), range(8), "layer")).sum(axis=-1)

    first, last = picture(0, 0), picture(3, 7)
    darker, lighter = (np.argwhere(where).mean(axis=0) for where in (first < last, first > last))
    assert np.all(darker + 100 < lighter)  # the upper left corner and the lower right
