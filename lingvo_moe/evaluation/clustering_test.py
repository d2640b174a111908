"""Tests of clustering: by hand, and against a slow transcription of average linkage."""

import itertools

import numpy as np
import pytest

from lingvo_moe.evaluation.clustering import average_linkage, best_groups, silhouette, strength


def _on_a_line(*places):
    places = np.array(places, float)
    return np.abs(places[:, None] - places)


def test_average_linkage_by_hand():
    # Places 0, 10, 1, 12: first 0-1 (distance 1), then 10-12 (2), then both.
    tree = average_linkage(_on_a_line(0, 10, 1, 12))
    joined = [(set(left), set(right)) for left, right in tree.merges]
    assert joined == [({0}, {2}), ({1}, {3}), ({0, 2}, {1, 3})]
    # Placed so that the nearest ends, 1 and 10, are neighbours.
    assert tree.order in ((0, 2, 1, 3), (3, 1, 2, 0))
    assert {frozenset(g) for g in tree.groups(2)} == {frozenset({0, 2}), frozenset({1, 3})}
    assert [len(tree.groups(n)) for n in (1, 2, 3, 4)] == [1, 2, 3, 4]


def _slow_merges(distances):
    """The members of each new cluster."""
    clusters = [[i] for i in range(len(distances))]
    merges = []
    while len(clusters) > 1:
        _, a, b = min(
            (np.mean([distances[i][j] for i in x for j in y]), clusters.index(x), clusters.index(y))
            for x, y in itertools.combinations(clusters, 2)
        )
        merges.append(frozenset(clusters[a] + clusters[b]))
        clusters[a] += clusters.pop(b)
    return merges


@pytest.mark.parametrize("seed", range(5))
def test_against_a_slow_transcription(seed):
    points = np.random.default_rng(seed).normal(size=(14, 3))
    distances = np.linalg.norm(points[:, None] - points, axis=-1)
    tree = average_linkage(distances)
    slow = _slow_merges(distances)
    assert [frozenset(left + right) for left, right in tree.merges] == slow
    # Every cluster is contiguous in the order.
    place = {thing: i for i, thing in enumerate(tree.order)}
    assert sorted(place) == list(range(14))
    for members in slow:
        places = [place[m] for m in members]
        assert max(places) - min(places) == len(places) - 1
    for count in range(1, 15):
        groups = tree.groups(count)
        assert len(groups) == count
        assert sum(groups, ()) == tree.order


def test_silhouette_by_hand():
    # Places 0, 1 | 5. Of 0: a = 1, b = 5, (5 - 1) / 5. Of 1: a = 1, b = 4, 3 / 4. Alone: 0.
    value = silhouette(_on_a_line(0, 1, 5), [(0, 1), (2,)])
    assert value == pytest.approx((4 / 5 + 3 / 4 + 0) / 3)
    # Equal items are not grouped, and there is no division by 0.
    assert silhouette(np.zeros((4, 4)), [(0, 1), (2, 3)]) == 0
    # The diagonal is ignored.
    odd = _on_a_line(0, 1, 5) + np.diag([9.0, 9, 9])
    assert silhouette(odd, [(0, 1), (2,)]) == pytest.approx(value)


def test_best_groups_finds_what_is_there():
    distances = _on_a_line(0, 1, 2, 50, 51, 52, 90, 91, 92)
    groups, score = best_groups(distances, average_linkage(distances), most=8)
    assert sorted(map(sorted, groups)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert score > 0.9
    assert strength(score) == "strong"
    # No more than asked for.
    groups, _ = best_groups(distances, average_linkage(distances), most=2)
    assert len(groups) == 2


def test_no_groups_where_all_are_as_far_apart():
    distances = 1 - np.eye(6)
    groups, score = best_groups(distances, average_linkage(distances), most=5)
    assert [len(g) for g in groups] == [6]
    assert strength(score) == "no substantial"


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_are_one_group(count):
    distances = 1 - np.eye(count)
    groups, score = best_groups(distances, average_linkage(distances), most=5)
    assert ([len(g) for g in groups], score) == ([count], None)
