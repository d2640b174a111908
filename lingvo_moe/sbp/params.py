"""Sharding strategies: the mesh axes of each letter of a model.

The letters are those of the layers' docstrings: B rows of a batch, G groups of tokens split over
all devices, g groups while experts are split, E experts split over devices, e experts not split,
R rows of a dense feed-forward network, r rows of experts, A all heads, N heads, H hidden,
V vocabulary, M model.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated

from lingvo_moe.config import fields
from lingvo_moe.sbp.types import Mesh

Letter = Annotated[str, fields.Rule("for single letters", lambda letter: len(letter) == 1)]
# (letter, the mesh axes that split it)
Rule = tuple[Letter, tuple[str, ...]]

_ALL = ("data", "expert")
# Rows and groups are split over all devices. Between the two AllToAlls the tokens of an expert are
# on the devices that hold it, separately for each position along "data".
DATA_AND_EXPERT: tuple[Rule, ...] = (
    *((letter, _ALL) for letter in "BGR"),
    *((letter, ("data",)) for letter in "gr"),
    ("E", ("expert",)),
)
# Shoeybi et al. 2019 (arXiv 1909.08053): heads and hidden units, so that a block of two products
# ends in one AllReduce.
_TENSOR: tuple[Rule, ...] = tuple((letter, ("model",)) for letter in "ANHV")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardingParams(fields.Params):
    """The sharding rules of a model; the mesh gives the number of pieces.

    Axes that the mesh does not have are ignored, so the same rules work for `data:8`,
    `data:2,expert:4` and `data:2,expert:2,model:2`.

    Attributes:
        rules: of activations, weights and optimizer slots.
        state_rules: additional rules of weights and slots at rest. If such a rule splits a weight
            further, its pieces are gathered at the beginning of a step, and its gradient is summed
            into pieces.
        late_sums: whether gradients are summed over devices after the last micro-batch (True) or
            after each (False), if train.micro_batches is above 1. Late sums send less, and are in
            float32, the others in activation_dtype; but a device holds the whole gradient of a
            weight that is split at rest.
    """

    rules: tuple[Rule, ...] = DATA_AND_EXPERT + _TENSOR
    state_rules: tuple[Rule, ...] = ()
    late_sums: bool = True

    def compute_rules(self, mesh: Mesh) -> Mapping[str, tuple[str, ...]]:
        """Letter -> axes of this mesh, for what is computed.

        Raises:
            ValueError: no rule names one of the mesh's axes.
        """
        return _on(mesh, self.rules)

    def storage_rules(self, mesh: Mesh) -> Mapping[str, tuple[str, ...]]:
        """Letter -> axes of this mesh, for weights and slots at rest."""
        return _on(mesh, self.rules + self.state_rules)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZeRO(ShardingParams):
    """Weights and slots at rest are split over "data" too (Rajbhandari et al. 2019, stage 3)."""

    state_rules: tuple[Rule, ...] = (("M", ("data",)),)
    late_sums: bool = False


def _on(mesh: Mesh, rules: tuple[Rule, ...]) -> dict[str, tuple[str, ...]]:
    known = sorted({axis for _, axes in rules for axis in axes})
    for axis in mesh.axes:
        if axis not in known:
            raise ValueError(
                f"Axis {axis!r} of the mesh splits nothing: the rules have {', '.join(known)}; "
                f"use one of these or add a rule for it to params.sharding."
            )
    return on_mesh(rules, mesh)


def on_mesh(rules: tuple[Rule, ...], mesh: Mesh) -> dict[str, tuple[str, ...]]:
    """Letter -> those of its axes that are in the mesh; letters without one are left out."""
    found = {letter: tuple(axis for axis in axes if axis in mesh.axes) for letter, axes in rules}
    return {letter: axes for letter, axes in found.items() if axes}
