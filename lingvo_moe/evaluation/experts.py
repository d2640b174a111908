"""Statistics of a routing record: balance, and languages by routing.

L languages that have tokens, E experts of a layer.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from lingvo_moe.evaluation.clustering import Tree, average_linkage, best_groups
from lingvo_moe.evaluation.routing import RoutingRecord

MOST_GROUPS = 12  # more groups would be hard to read
_PREFERRED = 1.2  # a group prefers an expert if it uses it this many times as much as others


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerExperts:
    """One MoE layer.

    Attributes:
        name: such as "encoder/layer_01".
        load: [E], number of choices of each expert.
        shares: [L, E], each language's choices as shares; NaN for a language without choices.
        max_vio: the busiest expert's load divided by the mean load, minus 1; 0 is balance.
        unused: number of experts without a choice.
        entropy: of the load, divided by its maximum ln E: 1 is balance, 0 a single busy expert.
        mutual_information: between the language and the expert of a choice, bits.
        by_chance: mean mutual information of as many choices that are independent of the language
            (Miller 1955): (L - 1)(E - 1) / (2 choices ln 2), bits.
    """

    name: str
    load: np.ndarray
    shares: np.ndarray
    max_vio: float
    unused: int
    entropy: float
    mutual_information: float
    by_chance: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preference:
    """An expert that a group of languages uses more than other languages; means of shares."""

    layer: str
    expert: int
    share: float
    others: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """The similarity of languages by the routing of the encoder's or the decoder's MoE layers.

    Attributes:
        name: "encoder" or "decoder".
        layers: its layers.
        similarity: [L, L], 1 minus the Jensen-Shannon divergence (bits) of two languages' shares,
            mean over layers: 1 if they use the same experts, 0 if they share none. NaN if no layer
            has choices of both.
        tree: average linkage over 1 - similarity.
        groups: of indices of languages, in the order of the tree; one if there is no structure.
        silhouette: the separation of the groups (see clustering); None for fewer than three.
        preferences: for each group, experts that it prefers.
    """

    name: str
    layers: tuple[LayerExperts, ...]
    similarity: np.ndarray
    tree: Tree
    groups: tuple[tuple[int, ...], ...]
    silhouette: float | None
    preferences: tuple[tuple[Preference, ...], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertStatistics:
    """All statistics of a record.

    Attributes:
        languages: labels of the L languages.
        silent: labels of languages without tokens, which the other fields exclude.
        choices: [L], mean number of choices per layer.
        sides: encoder and decoder, if they have MoE layers.
    """

    languages: tuple[str, ...]
    silent: tuple[str, ...]
    choices: np.ndarray
    sides: tuple[Side, ...]

    @property
    def layers(self) -> list[LayerExperts]:
        """All layers, the encoder's first."""
        return [layer for side in self.sides for layer in side.layers]


def analyze(record: RoutingRecord) -> ExpertStatistics:
    """Computes the statistics of a record.

    Raises:
        ValueError: the record has no choices.
    """
    spoken = record.pair_load.sum(axis=(0, 2)) > 0
    if not spoken.any():
        raise ValueError(
            "The record of routing has no tokens: no language pair has dev data. Prepare the data "
            "with a dev split."
        )
    labels = language_labels(record.pairs)
    layers = [_layer(record, i, spoken) for i in range(len(record.layers))]
    names = dict.fromkeys(layer.name.partition("/")[0] for layer in layers)
    return ExpertStatistics(
        languages=tuple(x for x, known in zip(labels, spoken, strict=True) if known),
        silent=tuple(x for x, known in zip(labels, spoken, strict=True) if not known),
        choices=record.pair_load[:, spoken].sum(axis=2).mean(axis=0),
        sides=tuple(
            _side(name, [x for x in layers if x.name.partition("/")[0] == name]) for name in names
        ),
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
    """Jensen-Shannon divergence of each two rows, in bits, 0 to 1.

    Args:
        shares: [L, E], rows that sum to one; the divergence from a row of NaN is NaN.

    Returns:
        [L, L].
    """
    entropies = _entropy(shares)
    return np.stack(
        [
            np.clip(_entropy((row + shares) / 2) - (own + entropies) / 2, 0, 1)
            for row, own in zip(shares, entropies, strict=True)
        ]
    )


def _layer(record, i, spoken):
    num_experts = int(record.num_experts[i])
    counts = np.asarray(record.pair_load[i, spoken, :num_experts], float)
    load, choices = counts.sum(axis=0), counts.sum()
    by_language = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, by_language, out=np.full_like(counts, np.nan), where=by_language > 0)
    empty = choices == 0
    heard = int((by_language > 0).sum())
    return LayerExperts(
        name=record.layers[i],
        load=load,
        shares=shares,
        max_vio=math.nan if empty else float(load.max() / load.mean() - 1),
        unused=int((load == 0).sum()),
        entropy=math.nan if empty else _balance(load / choices),
        mutual_information=math.nan if empty else mutual_information(counts),
        by_chance=math.nan
        if empty
        else (heard - 1) * (num_experts - 1) / (2 * choices * np.log(2)),
    )


def _balance(shares):
    return float(_entropy(shares) / math.log2(len(shares))) if len(shares) > 1 else 1.0


def _entropy(shares):
    """Bits, over the last axis."""
    safe = np.where(shares == 0, 1.0, shares)
    return -(shares * np.log2(safe)).sum(axis=-1)


def _side(name, layers):
    divergences = np.stack([jensen_shannon(layer.shares) for layer in layers])
    known = ~np.isnan(divergences)
    total, layers_known = np.where(known, divergences, 0).sum(axis=0), known.sum(axis=0)
    distance = np.divide(
        total, layers_known, out=np.full_like(total, np.nan), where=layers_known > 0
    )
    clear = np.nan_to_num(distance, nan=1.0)  # without a common layer the distance is the largest
    tree = average_linkage(clear)
    groups, score = best_groups(clear, tree, MOST_GROUPS)
    return Side(
        name=name,
        layers=tuple(layers),
        similarity=1 - distance,
        tree=tree,
        groups=tuple(groups),
        silhouette=score,
        preferences=tuple(_preferences(layers, group) for group in groups),
    )


def _preferences(layers, group, count=3):
    """Up to `count` experts per layer, by how much more the group uses them than others do."""
    inside = np.isin(np.arange(len(layers[0].shares)), group)
    found = []
    for layer in layers:
        known = ~np.isnan(layer.shares).any(axis=1)
        if not (known & inside).any() or not (known & ~inside).any():
            continue
        share = layer.shares[known & inside].mean(axis=0)
        others = layer.shares[known & ~inside].mean(axis=0)
        best = np.argsort(others - share, kind="stable")[:count]
        found += [
            Preference(
                layer=layer.name,
                expert=int(e),
                share=float(share[e]),
                others=float(others[e]),
            )
            for e in best
            if share[e] > _PREFERRED * others[e]
        ]
    return tuple(found)
