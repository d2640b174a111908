"""The cost model of expert placement from a table of hardware instead of a profile.

D devices.
"""

import dataclasses

import numpy as np

from lingvo_moe.hardware.chips import Hardware
from lingvo_moe.hardware.links import Interconnect, Switched, Torus, block
from lingvo_moe.placement.cost import CostModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertShape:
    """One expert and how it is trained.

    Attributes:
        model_dim: of its input and output.
        hidden_dim: between its two matrices.
        dtype: of activations, and of gradients as synchronised.
        state_bytes: a weight: itself and what the optimizer keeps; 12 for Adam in float32.
    """

    model_dim: int = 1024
    hidden_dim: int = 4096
    dtype: str = "bfloat16"
    state_bytes: int = 12

    def __post_init__(self):
        if min(self.model_dim, self.hidden_dim, self.state_bytes) < 1:
            raise ValueError("model_dim, hidden_dim and state_bytes must be at least 1.")

    @property
    def weights(self) -> int:
        """How many; biases are left out."""
        return 2 * self.model_dim * self.hidden_dim


def cost_model(
    hardware: Hardware,
    devices: int,
    expert: ExpertShape,
    *,
    matmul_efficiency: float = 0.5,
    network_efficiency: float = 0.5,
) -> CostModel:
    """Rates of `devices` of a kind.

    Args:
        hardware: the kind.
        devices: D.
        expert: what runs on them.
        matmul_efficiency: share of the peak that an expert's matrix products reach.
        network_efficiency: share of the links' bandwidth that collectives reach.

    Raises:
        ValueError: no such dtype, or an efficiency outside of (0, 1].
    """
    if expert.dtype not in hardware.matmul:
        raise ValueError(
            f"No speed is known in {expert.dtype!r}; choose one of {', '.join(hardware.matmul)}."
        )
    for name, value in (
        ("matmul_efficiency", matmul_efficiency),
        ("network_efficiency", network_efficiency),
    ):
        if not 0 < value <= 1:
            raise ValueError(f"{name} must be in (0, 1], got {value}.")
    node, local, remote = _links(hardware.interconnect, devices, hardware.bandwidth)
    local, remote = local * network_efficiency, remote * network_efficiency
    nodes = np.arange(devices) // node
    bandwidth = np.where(nodes[:, None] == nodes, local, remote)
    np.fill_diagonal(bandwidth, np.inf)
    element = hardware.wire_bytes[expert.dtype]
    # Multiply and add, forwards, and twice as much backwards.
    flops = 6 * expert.weights
    return CostModel(
        tokens_per_second=hardware.matmul[expert.dtype] * matmul_efficiency / flops,
        bandwidth=bandwidth,
        nodes=nodes,
        sync_near=2 / local,
        sync_far=2 / remote,
        token_bytes=element * expert.model_dim,
        gradient_bytes=element * expert.weights,
        state_bytes=expert.state_bytes * expert.weights,
    )


def _links(wires: Interconnect, devices: int, memory: float) -> tuple[int, float, float]:
    """(devices of a node, bytes/s of a device within it, and beyond it when all exchange)."""
    match wires:
        case Switched():
            return wires.node, wires.local, wires.remote
        case Torus():
            # Far pairs share links with all others: each gets its part of a full exchange.
            beyond = max(devices - wires.cores, 0)
            seconds = dataclasses.replace(wires, hop=0.0).all_to_all_seconds(1.0, block(devices))
            remote = beyond / devices / seconds if beyond else memory
            return wires.cores, memory, remote
    raise ValueError(f"No bandwidth of pairs of devices is known for {type(wires).__name__}.")
