"""Tests of the numbers, by hand and against slow loops."""

import math

import numpy as np
import pytest

from lingvo_moe.evaluation.experts import (
    analyze,
    jensen_shannon,
    language_labels,
    mutual_information,
)
from lingvo_moe.testing.reports import families, make_record


@pytest.mark.parametrize(
    ("pairs", "labels"),
    [
        (["de-en", "fr-en"], ["de", "fr"]),
        (["en-de", "en-fr"], ["de", "fr"]),
        (["de-en", "en-de"], ["de-en", "en-de"]),
        (["de-en", "fr-en", "de-fr"], ["de-en", "fr-en", "de-fr"]),
        (["de-en"], ["de-en"]),
        (["zh_TW-en", "zh_CN-en"], ["zh_TW", "zh_CN"]),
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


def test_mutual_information_at_its_ends():
    assert mutual_information(np.outer([1, 2, 3], [4, 5])) == pytest.approx(0, abs=1e-12)
    # Each of four languages has its own expert: log2(4) bits.
    assert mutual_information(3.0 * np.eye(4)) == pytest.approx(2)


def test_mutual_information_of_chance_alone_is_what_by_chance_says():
    rng = np.random.default_rng(0)
    loads = rng.multinomial(500, np.ones(16) / 16, size=(200, 10)).astype(float)
    found = np.mean([mutual_information(counts) for counts in loads])
    (layer,) = analyze(make_record(loads[:1], pairs=[f"x{i}-en" for i in range(10)])).layers
    assert found == pytest.approx(layer.by_chance, rel=0.05)


def test_jensen_shannon_by_hand_and_by_loops():
    same, other, half = [1.0, 0, 0], [0, 1.0, 0], [0.5, 0.5, 0]
    divergence = jensen_shannon(np.array([same, other, half, [np.nan] * 3]))
    # Nothing in common: 1 bit. Of (1, 0) and (1/2, 1/2): H(3/4, 1/4) - (0 + 1) / 2.
    third = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)) - 0.5
    np.testing.assert_allclose(
        divergence[:3, :3], [[0, 1, third], [1, 0, third], [third, third, 0]], atol=1e-12
    )
    assert np.isnan(divergence[3]).all()
    assert np.isnan(divergence[:, 3]).all()

    rows = np.random.default_rng(1).dirichlet(np.ones(7), size=5)
    found = jensen_shannon(rows)
    for a in range(5):
        for b in range(5):
            total = 0.0
            for p, q in zip(rows[a], rows[b], strict=True):
                total += (p * math.log2(2 * p / (p + q)) + q * math.log2(2 * q / (p + q))) / 2
            assert found[a, b] == pytest.approx(total, abs=1e-12)


def test_families_are_found_and_their_experts_named():
    experts = analyze(families())
    encoder, decoder = experts.sides
    groups = [{experts.languages[i] for i in g} for g in encoder.groups]
    assert sorted(map(sorted, groups)) == [["a1", "a2", "a3"], ["b1", "b2", "b3"]]
    assert encoder.silhouette > 0.7
    mine = encoder.preferences[groups.index({"a1", "a2", "a3"})]
    assert [(p.layer, p.expert) for p in mine] == [
        ("encoder/layer_01", 0),
        ("encoder/layer_01", 1),
    ]
    # (80 + 81 + 82) / 3 % against (5 + 6 + 7) / 3 %.
    assert (mine[0].share, mine[0].others) == (pytest.approx(0.81), pytest.approx(0.06))
    np.testing.assert_allclose(decoder.similarity, 1)
    assert len(decoder.groups) == 1
    assert decoder.preferences == ((),)


def test_similarity_is_the_mean_over_layers_that_know_both():
    record = make_record(
        [
            [[1.0, 0], [1.0, 0], [1.0, 0]],
            [[1.0, 0], [0, 1.0], [0, 0]],  # c has nothing here, a and b have nothing in common
            [[1.0, 0], [1.0, 0], [0, 0]],
        ],
        pairs=["a-en", "b-en", "c-en"],
    )
    encoder, decoder = analyze(record).sides
    np.testing.assert_allclose(encoder.similarity, 1)
    np.testing.assert_allclose(decoder.similarity[:2, :2], [[1, 0.5], [0.5, 1]])
    assert np.isnan(decoder.similarity[2]).all()
    assert decoder.tree.merges[0] == ((0,), (1,))  # what is unknown is far


def test_pairs_without_tokens_are_named_and_left_out():
    experts = analyze(make_record([[[3.0, 1], [0, 0], [2, 2]]], pairs=["a-en", "b-en", "c-en"]))
    assert (experts.languages, experts.silent) == (("a", "c"), ("b",))
    assert experts.layers[0].shares.shape == (2, 2)
    assert experts.choices.tolist() == [4, 4]


def test_a_layer_of_fewer_experts_is_not_padded():
    record = make_record([[[1.0, 3, 0, 0]] * 2, [[1.0, 1, 1, 1]] * 2])
    record.num_experts[0] = 2
    first, second = analyze(record).layers
    assert (len(first.load), first.unused, len(second.load)) == (2, 0, 4)


def test_a_layer_without_choices_has_no_numbers():
    experts = analyze(make_record([[[1.0, 3]] * 2, [[0.0, 0]] * 2]))
    empty = experts.layers[1]
    assert math.isnan(empty.max_vio)
    assert math.isnan(empty.entropy)
    assert math.isnan(empty.mutual_information)
    assert empty.unused == 2


def test_languages_and_experts_that_a_layer_lacks_are_not_counted_in_what_chance_makes():
    # The second layer has three of four experts and two of three languages, of 4 choices each:
    # (2 - 1)(3 - 1) / (2 · 8 · ln 2).
    loads = [[[1.0, 1, 1, 1]] * 3, [[2.0, 1, 1, 0], [1, 2, 1, 0], [0, 0, 0, 0]]]
    record = make_record(loads, pairs=["a-en", "b-en", "c-en"])
    record.num_experts[1] = 3
    assert analyze(record).layers[1].by_chance == pytest.approx(2 / (16 * math.log(2)))


def test_no_tokens_at_all():
    with pytest.raises(ValueError, match=r"no language pair has dev data. Prepare the data with"):
        analyze(make_record([[[0.0, 0], [0.0, 0]]]))
