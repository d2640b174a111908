"""What one group of blocks costs a device in a step."""

import dataclasses

PARTS = (
    *("attention", "feed_forward", "experts", "gating", "dispatch", "all_to_all"),
    *("tensor_parallel", "gradients", "softmax", "optimizer"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Computation:
    """Computation of one device in one step: matrix products' FLOPs, and bytes of its memory."""

    part: str
    flops: float = 0.0
    bytes: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Communication:
    """Communication of one device in one step."""

    part: str  # which of PARTS it belongs to
    kind: str  # as in HLO: "all-to-all", "all-reduce", "all-gather"
    bytes: float  # of a device, all collectives together
    axes: tuple[str, ...]  # of the mesh, along which devices communicate
    count: int  # number of collectives; gradients, which XLA combines, count as one for a group


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockCost:
    """The cost of one group of blocks for a device and step."""

    # work, transfers: computation and communication
    work: tuple[Computation, ...]
    transfers: tuple[Communication, ...]
    # weights, optimizer, gradients: bytes at rest
    weights: float
    optimizer: float
    gradients: float
    in_use: float  # bytes of gathered or cast weights, in addition to those at rest
    # bytes from the forward to the backward pass, for one layer of each kind
    kept: tuple[float, ...]
    inputs: float = 0.0  # bytes of the inputs of all layers
    logits: float = 0.0  # bytes of logits and their gradient
