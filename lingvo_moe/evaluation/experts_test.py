"""Tests of the numbers, by hand."""

import math

import numpy as np
import pytest

from lingvo_moe.evaluation.experts import analyze, layers_table, pairs_table
from lingvo_moe.testing.reports import make_record


def test_a_layer_by_hand():
    # de: 6 and 2, fr: 1 and 3. Loads 7 and 5, mean 6.
    (layer,) = analyze(make_record())
    assert layer.max_vio == pytest.approx(1 / 6)
    assert layer.unused == 0
    entropy = -(7 / 12 * math.log2(7 / 12) + 5 / 12 * math.log2(5 / 12))
    assert layer.entropy == pytest.approx(entropy)  # over log2(2) = 1
    # (2 - 1)(2 - 1) / (2 · 12 · ln 2)
    assert layer.by_chance == pytest.approx(1 / (24 * math.log(2)))
    # H(expert) - H(expert | pair): both pairs have the entropy of 1/4 and 3/4.
    within = -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    assert layer.mutual_information == pytest.approx(entropy - within)
    row = layers_table([layer]).rows[0]
    assert row == ("encoder/layer_01", "2", "0.17", "0", "0.980", "0.1686", "0.0601")


def test_balance_at_its_ends():
    even, collapsed = analyze(make_record([[[5.0, 5, 5, 5]] * 2, [[20.0, 0, 0, 0]] * 2]))
    assert (even.max_vio, even.unused, even.entropy) == (0, 0, pytest.approx(1))
    assert (collapsed.max_vio, collapsed.unused, collapsed.entropy) == (3, 3, pytest.approx(0))
    assert analyze(make_record([[[5.0], [4.0]]]))[0].entropy == 1  # E = 1


def test_information_of_chance_alone():
    rng = np.random.default_rng(0)
    loads = rng.multinomial(500, np.ones(16) / 16, size=(200, 10)).astype(float)
    names = [f"x{i}-en" for i in range(10)]
    layers = [analyze(make_record([counts], pairs=names))[0] for counts in loads]
    found = np.mean([layer.mutual_information for layer in layers])
    assert found == pytest.approx(layers[0].by_chance, rel=0.05)


def test_the_busiest_experts_of_each_pair():
    """A pair without tokens, and experts that a layer lacks."""
    loads = [
        [[3.0, 1, 6, 0], [0, 0, 0, 0], [2, 2, 0, 0]],
        [[1.0, 3, 0, 0], [0, 0, 0, 0], [0, 8, 0, 0]],
    ]
    record = make_record(loads, pairs=["a-en", "b-en", "c-en"])
    record.num_experts[1] = 2
    layers = analyze(record)
    assert layers[1].unused == 0
    assert layers[1].by_chance == pytest.approx(1 / (24 * math.log(2)))  # two pairs, two experts
    assert pairs_table(layers, record.pairs).rows == [
        ("a-en", "2 (60%) 0 (30%)", "1 (75%) 0 (25%)"),
        ("b-en", "", ""),
        ("c-en", "0 (50%) 1 (50%)", "1 (100%)"),
    ]
    with pytest.raises(ValueError, match="dev"):
        analyze(make_record([[[0.0, 0], [0.0, 0]]]))
