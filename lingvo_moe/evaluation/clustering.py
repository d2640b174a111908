"""Hierarchical clustering of N items by their distances, for N up to a few hundred."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

# Kaufman and Rousseeuw, Finding Groups in Data (1990), table 4: up to this value there is "no
# substantial structure", above it a weak, reasonable or strong one.
SILHOUETTE_OF_NOTHING = 0.25
_STRENGTHS = ((0.7, "strong"), (0.5, "reasonable"), (SILHOUETTE_OF_NOTHING, "weak"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tree:
    """The result of average linkage of N items.

    Attributes:
        merges: the N - 1 unions, nearest first; each has the items of its two sides, in an order in
            which similar items are neighbours.
        num_things: N.
    """

    merges: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    num_things: int

    @functools.cached_property
    def order(self) -> tuple[int, ...]:
        """All items; each cluster is contiguous, and similar items are neighbours."""
        return sum(self.merges[-1], ()) if self.merges else tuple(range(self.num_things))

    def groups(self, count: int) -> list[tuple[int, ...]]:
        """The tree cut into `count` clusters, in the order of `order`."""
        clusters: set[tuple[int, ...]] = {(thing,) for thing in range(self.num_things)}
        for left, right in self.merges[: self.num_things - count]:
            clusters -= {left, left[::-1], right, right[::-1]}
            clusters.add(left + right)
        place = {thing: i for i, thing in enumerate(self.order)}
        return sorted(
            (tuple(sorted(c, key=place.__getitem__)) for c in clusters), key=lambda c: place[c[0]]
        )


def average_linkage(distances: np.ndarray) -> Tree:
    """Repeatedly joins the two clusters with the smallest mean distance between members.

    This is UPGMA (Sokal and Michener 1958). Two joined clusters can be placed in four orders; the
    one with the smallest distance between the neighbouring ends is taken. Of equal distances the
    lower index is taken.

    Args:
        distances: [N, N], symmetric, N >= 1; the diagonal is ignored.
    """
    between = np.array(distances, float)
    np.fill_diagonal(between, np.inf)
    clusters: dict[int, tuple[int, ...]] = {i: (i,) for i in range(len(between))}
    merges = []
    while len(clusters) > 1:
        a, b = sorted(divmod(int(between.argmin()), len(between)))
        left, right = _side_by_side(clusters[a], clusters.pop(b), distances)
        merges.append((left, right))
        clusters[a] = left + right
        mean = np.average(between[[a, b]], axis=0, weights=[len(left), len(right)])
        between[a], between[:, a] = mean, mean
        between[b], between[:, b] = np.inf, np.inf
        between[a, a] = np.inf
    return Tree(merges=tuple(merges), num_things=len(between))


def _side_by_side(left, right, distances):
    layouts = [(x, y) for x in (left, left[::-1]) for y in (right, right[::-1])]
    return min(layouts, key=lambda xy: distances[xy[0][-1], xy[1][0]])


def silhouette(distances: np.ndarray, groups: Sequence[Sequence[int]]) -> float:
    """The separation of groups: 1 is perfect, 0 is none (Rousseeuw 1987).

    The mean over items of (b - a) / max(a, b): a is the mean distance to the rest of the item's
    group, b that to the nearest other group; 0 for a group of one item.

    Args:
        distances: [N, N], symmetric.
        groups: two or more; each of the N items is in one group.
    """
    member = np.zeros((len(groups), len(distances)))
    for i, group in enumerate(groups):
        member[i, list(group)] = 1.0
    sizes = member.sum(axis=1)
    off_diagonal = distances * (1 - np.eye(len(distances)))
    totals = member @ off_diagonal  # [groups, N]
    own = member.astype(bool).T  # [N, groups]
    inside = (totals.T[own]) / np.maximum(sizes[own.argmax(axis=1)] - 1, 1)
    outside = np.where(own, np.inf, totals.T / sizes).min(axis=1)
    largest = np.maximum(inside, outside)
    values = np.divide(outside - inside, largest, out=np.zeros(len(largest)), where=largest > 0)
    return float(np.where(sizes[own.argmax(axis=1)] > 1, values, 0.0).mean())


def best_groups(
    distances: np.ndarray, tree: Tree, most: int
) -> tuple[list[tuple[int, ...]], float | None]:
    """The cut of a tree, into 2 to `most` groups, with the best silhouette, and that silhouette.

    If no cut is above SILHOUETTE_OF_NOTHING, all items are one group. For fewer than three items
    the silhouette is None.
    """
    cuts = [tree.groups(count) for count in range(2, min(most, tree.num_things - 1) + 1)]
    if not cuts:
        return tree.groups(1), None
    scores = [silhouette(distances, cut) for cut in cuts]
    best = int(np.argmax(scores))
    groups = cuts[best] if scores[best] > SILHOUETTE_OF_NOTHING else tree.groups(1)
    return groups, scores[best]


def strength(score: float) -> str:
    """A silhouette in words."""
    return next((word for bound, word in _STRENGTHS if score > bound), "no substantial")
