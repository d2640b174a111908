"""Tests of the numbers, by hand and against slow loops."""

import math

import numpy as np
import pytest

from lingvo_moe.evaluation.experts import (
    analyze,
    best_groups,
    jensen_shannon,
    language_labels,
    mutual_information,
    silhouette,
)
from lingvo_moe.testing.reports import families, make_record


@pytest.mark.parametrize(
    ("pairs", "labels"),
    [
        (["de-en", "fr-en"], ["de", "fr"]),
        (["en-de", "en-fr"], ["de", "fr"]),
        (["de-en", "en-de"], ["de-en", "en-de"]),
        (["de-en"], ["de-en"]),
    ],
)
def test_labels_are_the_side_that_varies(pairs, labels):
    assert language_labels(pairs) == labels


def test_a_layer_by_hand():
    # de: 6 and 2, fr: 1 and 3. Loads 7 and 5, mean 6.
    (layer,) = analyze(make_record()).layers
    assert layer.load.tolist() == [7, 5]
    np.testing.assert_allclose(layer.shares, [[0.75, 0.25], [0.25, 0.75]])
    assert layer.max_vio == pytest.approx(1 / 6)
    assert layer.unused == 0
    entropy = -(7 / 12 * math.log2(7 / 12) + 5 / 12 * math.log2(5 / 12))
    assert layer.entropy == pytest.approx(entropy)  # over log2(2) = 1
    # (2 - 1)(2 - 1) / (2 · 12 · ln 2)
    assert layer.by_chance == pytest.approx(1 / (24 * math.log(2)))
    # H(expert) - H(expert | language): both languages have the entropy of 1/4 and 3/4.
    within = -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    assert layer.mutual_information == pytest.approx(entropy - within)


def test_balance_at_its_ends():
    even, collapsed = analyze(make_record([[[5.0, 5, 5, 5]] * 2, [[20.0, 0, 0, 0]] * 2])).layers
    assert (even.max_vio, even.unused, even.entropy) == (0, 0, pytest.approx(1))
    assert (collapsed.max_vio, collapsed.unused, collapsed.entropy) == (3, 3, pytest.approx(0))
    assert analyze(make_record([[[5.0], [4.0]]])).layers[0].entropy == 1  # E = 1


def test_mutual_information_at_its_ends_and_of_chance_alone():
    assert mutual_information(np.outer([1, 2, 3], [4, 5])) == pytest.approx(0, abs=1e-12)
    assert mutual_information(3.0 * np.eye(4)) == pytest.approx(2)  # log2(4) bits
    rng = np.random.default_rng(0)
    loads = rng.multinomial(500, np.ones(16) / 16, size=(200, 10)).astype(float)
    found = np.mean([mutual_information(counts) for counts in loads])
    (layer,) = analyze(make_record(loads[:1], pairs=[f"x{i}-en" for i in range(10)])).layers
    assert found == pytest.approx(layer.by_chance, rel=0.05)


def test_jensen_shannon_by_loops():
    rows = np.random.default_rng(1).dirichlet(np.ones(7), size=5)
    rows[0] = np.eye(7)[0]
    rows[1] = np.eye(7)[1]  # nothing in common with the first: 1 bit
    found = jensen_shannon(np.array([*rows, [np.nan] * 7]))
    assert found[0, 1] == pytest.approx(1)
    assert np.isnan(found[5]).all()
    assert np.isnan(found[:, 5]).all()
    for a in range(5):
        for b in range(5):
            both = [(p, q) for p, q in zip(rows[a], rows[b], strict=True)]
            terms = [x * math.log2(2 * x / (p + q)) / 2 for p, q in both for x in (p, q) if x]
            assert found[a, b] == pytest.approx(sum(terms), abs=1e-12)


def _on_a_line(*places):
    places = np.array(places, float)
    return np.abs(places[:, None] - places)


def test_silhouette_by_hand():
    # Places 0, 1 | 5. Of 0: a = 1, b = 5, (5 - 1) / 5. Of 1: a = 1, b = 4, 3 / 4. Alone: 0.
    value = silhouette(_on_a_line(0, 1, 5), np.array([1, 1, 2]))
    assert value == pytest.approx((4 / 5 + 3 / 4 + 0) / 3)
    assert silhouette(np.zeros((4, 4)), np.array([1, 1, 2, 2])) == 0  # no division by 0


def test_groups_that_are_there_and_groups_that_are_not():
    groups, score = best_groups(_on_a_line(0, 50, 1, 91, 51, 2, 52, 90, 92))
    assert sorted(map(sorted, groups)) == [[0, 2, 5], [1, 4, 6], [3, 7, 8]]
    assert score > 0.9
    groups, score = best_groups(1 - np.eye(6))
    assert ([len(group) for group in groups], score) == ([6], 0)
    assert best_groups(1 - np.eye(2)) == ([(0, 1)], None)


def test_families_are_found():
    experts = analyze(families())
    encoder, decoder = experts.sides
    groups = [{experts.languages[i] for i in g} for g in encoder.groups]
    assert sorted(map(sorted, groups)) == [["a1", "a2", "a3"], ["b1", "b2", "b3"]]
    assert encoder.silhouette > 0.7
    assert len(decoder.groups) == 1


def test_what_is_missing():
    """A pair without tokens, experts that a layer lacks, a language and a layer without choices."""
    experts = analyze(make_record([[[3.0, 1], [0, 0], [2, 2]]], pairs=["a-en", "b-en", "c-en"]))
    assert (experts.languages, experts.silent) == (("a", "c"), ("b",))
    assert experts.layers[0].shares.shape == (2, 2)
    # The second layer has three of four experts and two of three languages, of 4 choices each:
    # (2 - 1)(3 - 1) / (2 · 8 · ln 2).
    loads = [[[1.0, 1, 1, 1]] * 3, [[2.0, 1, 1, 0], [1, 2, 1, 0], [0, 0, 0, 0]], [[0.0] * 4] * 3]
    record = make_record(loads, pairs=["a-en", "b-en", "c-en"])
    record.num_experts[1] = 3
    _, fewer, empty = analyze(record).layers
    assert (len(fewer.load), fewer.unused) == (3, 0)
    assert fewer.by_chance == pytest.approx(2 / (16 * math.log(2)))
    assert empty.unused == 4
    assert np.isnan([empty.max_vio, empty.entropy, empty.mutual_information]).all()
    with pytest.raises(ValueError, match="dev"):
        analyze(make_record([[[0.0, 0], [0.0, 0]]]))
