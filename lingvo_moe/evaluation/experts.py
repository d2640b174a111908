"""Which language pairs use which experts: statistics and tables of a routing record.

P pairs, E experts of a layer.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.reporting.table import Table

_BUSIEST = 2  # experts of a pair that are shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerExperts:
    """One MoE layer."""

    name: str  # such as "encoder/layer_01"
    counts: np.ndarray  # [P, E], number of choices of each expert by tokens of each pair
    # the busiest expert's load divided by the mean load, minus 1; 0 is balance
    max_vio: float
    unused: int  # number of experts without a choice
    # of the load, divided by its maximum ln E: 1 is balance, 0 a single busy expert
    entropy: float
    mutual_information: float  # between the pair and the expert of a choice, bits
    # mean mutual information of as many choices that are independent of the pair (Miller 1955):
    # (P - 1)(E - 1) / (2 choices ln 2) for the P pairs with choices, bits
    by_chance: float


def analyze(record: RoutingRecord) -> list[LayerExperts]:
    """The statistics of each layer. Raises ValueError: the record has no choices."""
    if not record.pair_load.any():
        raise ValueError(
            "The record of routing has no tokens: no language pair has dev data. Prepare the data "
            "with a dev split."
        )
    loads = zip(record.layers, record.pair_load, record.num_experts, strict=True)
    return [_layer(name, counts[:, :experts]) for name, counts, experts in loads]


def layers_table(layers: Sequence[LayerExperts]) -> Table:
    """A row for each layer."""
    columns = ("layer", "experts", "MaxVio", "unused", "entropy", "pair–expert bits", "by chance")
    rows = [
        (
            one.name,
            str(one.counts.shape[1]),
            f"{one.max_vio:.2f}",
            str(one.unused),
            f"{one.entropy:.3f}",
            f"{one.mutual_information:.4f}",
            f"{one.by_chance:.4f}",
        )
        for one in layers
    ]
    return Table(columns, rows)


def pairs_table(layers: Sequence[LayerExperts], pairs: Sequence[str]) -> Table:
    """A row for each pair: its busiest experts in each layer, with their shares of its choices."""

    def busiest(counts):
        order = np.argsort(-counts, kind="stable")[:_BUSIEST]
        used = [
            f"{expert} ({counts[expert] / counts.sum():.0%})" for expert in order if counts[expert]
        ]
        return " ".join(used)

    rows = [(pair, *(busiest(one.counts[row]) for one in layers)) for row, pair in enumerate(pairs)]
    return Table(("pair", *(one.name for one in layers)), rows, texts=1 + len(layers))


def _layer(name, counts):
    load, experts = counts.sum(axis=0), counts.shape[1]
    of_pairs = counts.sum(axis=1)
    information = _entropy(load) + _entropy(of_pairs) - _entropy(counts)
    by_chance = ((of_pairs > 0).sum() - 1) * (experts - 1) / (2 * load.sum())
    return LayerExperts(
        name=name,
        counts=counts,
        max_vio=float(load.max() / load.mean() - 1),
        unused=int((load == 0).sum()),
        entropy=float(_entropy(load) / math.log(experts)) if experts > 1 else 1.0,
        mutual_information=float(information / math.log(2)),
        by_chance=float(by_chance / math.log(2)),
    )


def _entropy(counts):
    """Nats, of counts as shares."""
    return special.entr(counts / counts.sum()).sum()
