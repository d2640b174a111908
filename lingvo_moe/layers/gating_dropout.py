"""Gating dropout: steps in which tokens stay on their node.  G groups, E experts, N nodes."""

import dataclasses
from typing import Any

from lingvo_moe.core.fields import Params, PositiveInt, Rate
from lingvo_moe.gatings.base import Gating
from lingvo_moe.gatings.on_node import OnNode
from lingvo_moe.layers.dispatch import Dispatcher, Einsum, Gather, Ragged
from lingvo_moe.layers.local_gather import LocalGather, check_nodes
from lingvo_moe.sharding.annotations import Mesh


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatingDropout(Params):
    """A share of the training steps is local: every token stays on its node, without an AllToAll.

    Liu et al. 2022 (arXiv 2205.14336), Gate-Drop. In a local step a router chooses among the
    experts of the token's node (see OnNode). The draw depends only on the seed and the step, so
    all devices agree. Local steps are a separate program. Evaluation has none.

    On a mesh a node is one position of the axis of experts, and each device has one group. On one
    device the nodes are simulated, with the same numbers.

    Attributes:
        rate: the probability that a step is local. The default is ours, not taken from the paper.
        nodes: N; must divide the experts of every layer and moe.num_groups.
    """

    rate: Rate = 0.3
    nodes: PositiveInt

    def check(self, moe: Any) -> None:
        """Checks MoEParams.

        Raises:
            ValueError: nodes that do not fit, or a policy that cannot be local.
        """
        sizes = {
            "moe.num_experts": moe.num_experts,
            "moe.decoder_num_experts": moe.decoder_num_experts or moe.num_experts,
            "moe.num_groups": moe.num_groups,
        }
        for name, size in sizes.items():
            if size % self.nodes:
                raise ValueError(
                    f"{name}={size} cannot be divided over GatingDropout(nodes={self.nodes}); "
                    f"change one of them."
                )
        if getattr(moe.gating, "limit", None):
            raise ValueError(
                "A local step of GatingDropout has one node, so it cannot also have a limit of "
                "nodes; set limit=None."
            )
        check_nodes(self.gating(moe.gating), self.dispatcher(moe.dispatcher))

    def check_pieces(self, num_groups: int, pieces: int, devices: int, mesh: Mesh) -> None:
        """Checks a mesh that splits experts into `pieces`, and groups over `devices`.

        Raises:
            ValueError: the mesh has another number of nodes or groups.
        """
        if (pieces, devices) != (self.nodes, num_groups):
            raise ValueError(
                f"GatingDropout(nodes={self.nodes}) and moe.num_groups={num_groups} do not fit the "
                f"mesh {mesh}; set nodes={pieces}, as experts are split, and moe.num_groups="
                f"{devices}, one per device."
            )

    def gating(self, gating: Gating) -> Gating:
        """The policy of a local step; one that is local already stays as it is."""
        return gating if isinstance(gating, OnNode) else OnNode(gating=gating, nodes=self.nodes)

    def dispatcher(self, dispatcher: Dispatcher) -> Dispatcher:
        """The dispatcher of a local step.

        Raises:
            ValueError: there are no local steps for the dispatcher.
        """
        if isinstance(dispatcher, Ragged):
            return dispatcher
        if isinstance(dispatcher, Einsum | Gather | LocalGather):
            return LocalGather(nodes=self.nodes)
        raise ValueError(
            f"GatingDropout has no local steps for moe.dispatcher={dispatcher}; choose Gather(), "
            f"Einsum(), LocalGather() or, on one device, Ragged()."
        )
