"""Counts of routing by language pair, as a file.  Y MoE layers, P pairs, E experts."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lingvo_moe.system import npz

_BY_PAIR = ("pair_load", "pair_first", "pair_confidence")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoutingRecord:
    """Counts over some text, in evaluation mode."""

    layers: tuple[str, ...]  # names of the Y MoE layers, such as "encoder/layer_01"
    pairs: tuple[str, ...]  # names of the P pairs
    num_experts: np.ndarray  # int [Y]; a layer with fewer experts than E has zeros at the end
    pair_load: np.ndarray  # float [Y, P, E], number of choices of an expert by tokens of a pair
    pair_first: np.ndarray  # float [Y, P, E], those of pair_load that were a token's first choice
    pair_confidence: np.ndarray  # float [Y, P, E], the sum of the first choices' gates

    @staticmethod
    def of_metrics(
        metrics: Mapping[str, np.ndarray], layers: Sequence[str], pairs: Sequence[str]
    ) -> "RoutingRecord":
        """From summed metrics (see tasks.routing_metrics), names of layers and of pairs."""
        return RoutingRecord(
            layers=tuple(layers),
            pairs=tuple(pairs),
            num_experts=np.rint(metrics["num_experts"] / metrics["tokens"]).astype(int),
            **{name: np.asarray(metrics[name]) for name in _BY_PAIR},
        )

    def save(self, path: Path) -> None:
        """Writes an .npz file, which appears whole or not at all."""
        npz.save(path, **dataclasses.asdict(self))

    @staticmethod
    def load(path: Path) -> "RoutingRecord":
        """Reads what `save` wrote. Raises ValueError: there is none, or it cannot be read."""

        def make(fields):
            return RoutingRecord(
                layers=tuple(map(str, fields["layers"])),
                pairs=tuple(map(str, fields["pairs"])),
                num_experts=fields["num_experts"],
                **{name: fields[name] for name in _BY_PAIR},
            )

        cure = (
            "An evaluation on dev writes one while a Mixture-of-Experts model trains "
            "(train.eval_every), and so does lingvo-moe-experts --data=DATA."
        )
        return npz.load(path, make, "record of routing", cure)
