"""Which languages use which experts: the statistics of a routing record.

L languages that have tokens, E experts of a layer.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from lingvo_moe.evaluation.routing import RoutingRecord

# Kaufman and Rousseeuw, Finding Groups in Data (1990), table 4: a silhouette of up to this value is
# "no substantial structure".
NO_STRUCTURE = 0.25
MOST_GROUPS = 12  # more groups would be hard to read


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerExperts:
    """One MoE layer; numbers are NaN if it has no choices."""

    name: str  # such as "encoder/layer_01"
    load: np.ndarray  # [E], number of choices of each expert
    # [L, E], each language's choices as shares; NaN for a language without choices
    shares: np.ndarray
    # the busiest expert's load divided by the mean load, minus 1; 0 is balance
    max_vio: float = math.nan
    unused: int  # number of experts without a choice
    # of the load, divided by its maximum ln E: 1 is balance, 0 a single busy expert
    entropy: float = math.nan
    mutual_information: float = math.nan  # between the language and the expert of a choice, bits
    # mean mutual information of as many choices that are independent of the language (Miller 1955):
    # (L - 1)(E - 1) / (2 choices ln 2), bits
    by_chance: float = math.nan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """The groups of languages by the routing of the encoder's or the decoder's MoE layers.

    The distance of two languages is the Jensen-Shannon divergence (bits) of their shares, mean over
    layers; 1 if no layer has choices of both.
    """

    name: str  # "encoder" or "decoder"
    layers: tuple[LayerExperts, ...]  # its layers
    # of indices of languages, similar ones side by side; one if there is no structure
    groups: tuple[tuple[int, ...], ...]
    # the separation of the best groups; None for fewer than three languages
    silhouette: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertStatistics:
    """All statistics of a record."""

    languages: tuple[str, ...]  # labels of the L languages
    silent: tuple[str, ...]  # labels of languages without tokens, which the other fields exclude
    sides: tuple[Side, ...]  # encoder and decoder, if they have MoE layers

    @property
    def layers(self) -> list[LayerExperts]:
        """All layers, the encoder's first."""
        return [layer for side in self.sides for layer in side.layers]


def analyze(record: RoutingRecord) -> ExpertStatistics:
    """Computes the statistics of a record. Raises ValueError: the record has no choices."""
    spoken = record.pair_load.sum(axis=(0, 2)) > 0
    if not spoken.any():
        raise ValueError(
            "The record of routing has no tokens: no language pair has dev data. Prepare the data "
            "with a dev split."
        )
    labels = np.array(language_labels(record.pairs))
    layers = [_layer(record, i, spoken) for i in range(len(record.layers))]
    names = dict.fromkeys(layer.name.partition("/")[0] for layer in layers)
    sides = [_side(name, [x for x in layers if x.name.startswith(f"{name}/")]) for name in names]
    return ExpertStatistics(
        languages=tuple(labels[spoken].tolist()),
        silent=tuple(labels[~spoken].tolist()),
        sides=tuple(sides),
    )


def language_labels(pairs: Sequence[str]) -> list[str]:
    """Short labels: "de" for de-en if all pairs have the same target language, else the name."""
    sides = [pair.partition("-")[::2] for pair in pairs]
    for varying, fixed in ((0, 1), (1, 0)):
        if len(pairs) > 1 and len({side[fixed] for side in sides}) == 1:
            return [side[varying] for side in sides]
    return list(pairs)


def mutual_information(counts: np.ndarray) -> float:
    """Mutual information of row and column, in bits.  counts: [L, E], with some above 0."""
    joint = counts / counts.sum()
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0)
    seen = joint > 0
    return float((joint[seen] * np.log2(joint[seen] / independent[seen])).sum())


def jensen_shannon(shares: np.ndarray) -> np.ndarray:
    """Jensen-Shannon divergence of each two rows, in bits, 0 to 1: [L, L].

    Args:
        shares: [L, E], rows that sum to one; the divergence from a row of NaN is NaN.
    """
    entropies = _entropy(shares)
    both = [
        _entropy((row + shares) / 2) - (own + entropies) / 2
        for row, own in zip(shares, entropies, strict=True)
    ]
    return np.clip(both, 0, 1)


def best_groups(distances: np.ndarray) -> tuple[list[tuple[int, ...]], float | None]:
    """The cut of the tree of average linkage with the best silhouette, and that silhouette.

    Args:
        distances: [N, N], symmetric, 0 on the diagonal.

    Returns 2 to MOST_GROUPS groups, similar items side by side; all items as one group if no cut is
    above NO_STRUCTURE. For fewer than three items the silhouette is None.
    """
    if len(distances) < 3:
        return [tuple(range(len(distances)))], None
    nearby = squareform(distances, checks=False)
    tree = hierarchy.linkage(nearby, "average", optimal_ordering=True)
    order = hierarchy.leaves_list(tree)
    best, score = np.zeros(len(order)), 0.0
    for count in range(2, min(MOST_GROUPS, len(order) - 1) + 1):
        labels = hierarchy.fcluster(tree, count, "maxclust")
        if labels.max() > 1 and (found := silhouette(distances, labels)) > score:
            best, score = labels, found
    if score <= NO_STRUCTURE:
        best = np.zeros(len(order))
    numbers = dict.fromkeys(best[order].tolist())  # in the order of the tree
    return [tuple(i for i in order.tolist() if best[i] == number) for number in numbers], score


def silhouette(distances: np.ndarray, labels: np.ndarray) -> float:
    """The separation of groups: 1 is perfect, 0 is none (Rousseeuw 1987).

    The mean over items of (b - a) / max(a, b): a is the mean distance to the rest of the item's
    group, b that to the nearest other group; 0 for a group of one item.

    Args:
        distances: [N, N], symmetric, 0 on the diagonal.
        labels: [N], the group of each item; two or more groups.
    """
    own = labels[:, None] == np.unique(labels)  # [N, groups]
    sizes, totals = own.sum(axis=0), distances @ own
    inside = totals[own] / np.maximum((own @ sizes) - 1, 1)
    outside = np.where(own, np.inf, totals / sizes).min(axis=1)
    largest = np.maximum(inside, outside)
    values = np.divide(outside - inside, largest, out=np.zeros(len(largest)), where=largest > 0)
    return float(np.where(own @ sizes > 1, values, 0.0).mean())


def _layer(record, i, spoken):
    experts = int(record.num_experts[i])
    counts = np.asarray(record.pair_load[i, spoken, :experts], float)
    load, choices = counts.sum(axis=0), counts.sum()
    by_language = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, by_language, out=np.full_like(counts, np.nan), where=by_language > 0)
    unused, heard = int((load == 0).sum()), int((by_language > 0).sum())
    if not choices:
        return LayerExperts(name=record.layers[i], load=load, shares=shares, unused=unused)
    return LayerExperts(
        name=record.layers[i],
        load=load,
        shares=shares,
        max_vio=float(load.max() / load.mean() - 1),
        unused=unused,
        entropy=float(_entropy(load / choices) / math.log2(experts)) if experts > 1 else 1.0,
        mutual_information=mutual_information(counts),
        by_chance=(heard - 1) * (experts - 1) / (2 * choices * math.log(2)),
    )


def _entropy(shares):
    """Bits, over the last axis."""
    return -(shares * np.log2(np.where(shares == 0, 1.0, shares))).sum(axis=-1)


def _side(name, layers):
    divergences = np.ma.masked_invalid([jensen_shannon(layer.shares) for layer in layers])
    distances = divergences.mean(axis=0).filled(1.0)
    np.fill_diagonal(distances, 0.0)
    groups, score = best_groups(distances)
    return Side(name=name, layers=tuple(layers), groups=tuple(groups), silhouette=score)
