"""What a placement costs: seconds of one step of one Mixture-of-Experts layer, and of moving.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, section 3 (cost model). With I tokens of expert
e on device g, the step takes what the busiest device takes,

    T = max_g Σ_{e on g} ( F + I / TPS  +  4 Σ_{g'} (from g') · token bytes / Bw[g', g]
                           +  gradient bytes / BPS(devices that hold e) )

and a replica that is copied takes its bytes of weights and optimizer state / Bw. F is not in the
paper: an expert's weights are read and their gradients written however few its tokens are.

A compiled program of static shapes has as many rows for every slot as the busiest has tokens, so
where the model is `padded` the sum of F + I / TPS gives way to one term for all devices,

    slots of a device · max_e (tokens of e / slots of e) / TPS.

D devices (as sources), H the same as targets, E experts; "..." any leading dimensions.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from lingvo_moe.hardware.links import Switched
from lingvo_moe.placement.placement import Placement, relocation

_EXCHANGES = 4  # dispatch and combine, forwards and backwards


class Seconds(NamedTuple):
    """Time of experts on devices, each [..., D]."""

    compute: np.ndarray
    exchange: np.ndarray
    synchronise: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """The sum of the three."""
        return self.compute + self.exchange + self.synchronise


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CostModel:
    """Rates of the devices and sizes of the layer.

    Attributes:
        tokens_per_second: choices an expert handles on one device, forwards and backwards (TPS).
        bandwidth: [D, D] bytes/s from device (row) to device (column); the diagonal is infinite.
        wires: by which gradients are summed: BPS is bytes over its AllReduce's seconds. Devices in
            order lie on nodes of `wires.node` each.
        token_bytes: of one token's vector on the wire.
        gradient_bytes: of one expert, as synchronised.
        state_bytes: of one expert's weights and optimizer state, as copied.
        expert_seconds: of an expert on a device without any tokens (F).
        padded: whether every slot computes as many rows as the busiest one.
    """

    tokens_per_second: float
    bandwidth: np.ndarray
    wires: Switched
    token_bytes: float
    gradient_bytes: float
    state_bytes: float
    expert_seconds: float = 0.0
    padded: bool = False

    def __post_init__(self):
        devices = self.num_devices
        if self.bandwidth.shape != (devices, devices) or not (self.bandwidth > 0).all():
            raise ValueError(
                f"bandwidth must be positive, [{devices}, {devices}] for {devices} devices; "
                f"got {self.bandwidth.shape}, least {self.bandwidth.min()}."
            )
        if not np.isinf(np.diagonal(self.bandwidth)).all():
            raise ValueError("bandwidth from a device to itself must be infinite.")
        if self.tokens_per_second <= 0:
            raise ValueError(f"tokens_per_second must be > 0, got {self.tokens_per_second}.")
        for name in ("token_bytes", "gradient_bytes", "state_bytes", "expert_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}.")
        nodes = self.wires.nodes(devices)
        object.__setattr__(self, "_per_byte", 1.0 / self.bandwidth)
        object.__setattr__(self, "_on_node", np.eye(nodes.max() + 1)[nodes])

    @property
    def num_devices(self) -> int:
        """D."""
        return len(self.bandwidth)

    def expected(self, loads: np.ndarray, counts: np.ndarray) -> Seconds:
        """Seconds under flexible routing, rounding aside: tokens are as if divisible.

        Fast enough to try hundreds of placements a step.

        Args:
            loads: float [..., D], an expert's tokens on each source.
            counts: [..., D], the slots of that expert on each device, one or more in all.

        Returns:
            [..., D] each; of compute 0 where it is padded, see `padded_seconds`.
        """
        room = counts * (loads.sum(-1) / counts.sum(-1))[..., None]
        kept = np.minimum(room, loads)
        rest, spare = loads - kept, room - kept
        share = spare / np.maximum(spare.sum(-1, keepdims=True), 1e-30)
        arriving = share * (rest @ self._per_byte)
        compute = self.expert_seconds * (counts > 0) + room / self.tokens_per_second
        return Seconds(
            np.zeros_like(compute) if self.padded else compute,
            _EXCHANGES * self.token_bytes * arriving,
            self.sync_seconds(counts),
        )

    def of_flow(self, flow: np.ndarray, counts: np.ndarray) -> Seconds:
        """Seconds of tokens that go where `flow` says; each device computes its own, unpadded.

        Args:
            flow: [E, D, H] tokens from source to target.
            counts: [E, H], the slots of each expert on each device.

        Returns:
            [E, H] each.
        """
        return Seconds(
            self.expert_seconds * (counts > 0) + flow.sum(axis=1) / self.tokens_per_second,
            _EXCHANGES * self.token_bytes * np.einsum("edh,dh->eh", flow, self._per_byte),
            self.sync_seconds(counts),
        )

    def padded_seconds(self, rows: np.ndarray, slots_per_device: int) -> np.ndarray:
        """Of all devices for so many rows a slot; 0 where each computes its own tokens."""
        return self.padded * slots_per_device * rows / self.tokens_per_second

    def tokens_to_balance(self, loads: np.ndarray, placement: Placement) -> np.ndarray:
        """The tokens of which the most decide the time: of devices [D] or, where padded, of slots.

        Args:
            loads: [D, E].
            placement: of E experts.
        """
        if not self.padded:
            return device_tokens(loads, placement)
        each = np.append(loads.sum(axis=0) / placement.counts().sum(axis=1), 0.0)
        return each[placement.slots.ravel()]  # the last is EMPTY's

    def exchange_seconds_per_token(self) -> float:
        """All exchanges of a token between two different devices, mean over pairs."""
        pairs = self.num_devices * (self.num_devices - 1)
        return _EXCHANGES * self.token_bytes * float(self._per_byte.sum()) / max(pairs, 1)

    def sync_seconds(self, counts: np.ndarray) -> np.ndarray:
        """[..., D], each holder's seconds for an expert's gradients; none if there is but one.

        Replicas on one device share weights, so only devices count.
        """
        holds = counts > 0
        nodes = np.maximum((holds @ self._on_node > 0).sum(-1), 1)
        near = np.maximum(holds.sum(-1), 1) / nodes  # on the mean
        seconds = self.wires.sum_seconds(self.gradient_bytes, near, nodes)
        return np.where(holds, seconds[..., None], 0.0)

    def adjustment_seconds(self, before: Placement, after: Placement) -> float:
        """What coming from one placement to the other takes, all copies at the same time.

        A device sends and receives at once, but one copy after another each way; the busiest sets
        the time. Copies within a device are free.
        """
        if before == after:
            return 0.0
        source = relocation(before, after, self.bandwidth) // before.slots_per_device  # [D, K]
        target = np.broadcast_to(np.arange(self.num_devices)[:, None], source.shape)
        copied = self.state_bytes * self._per_byte[source, target]
        sends = np.bincount(source.ravel(), copied.ravel(), minlength=self.num_devices)
        return float(max(sends.max(), copied.sum(axis=1).max()))


def balance_ratio(device_tokens: np.ndarray) -> float:
    """The busiest device's tokens over the mean, 1 is balance; 1 if there are no tokens.

    Args:
        device_tokens: [D].
    """
    mean = device_tokens.mean()
    return float(device_tokens.max() / mean) if mean > 0 else 1.0


def device_tokens(loads: np.ndarray, placement: Placement) -> np.ndarray:
    """float [D], tokens each device handles, replicas of an expert sharing its tokens evenly.

    Args:
        loads: [D, E].
        placement: of E experts.
    """
    counts = placement.counts()
    return (loads.sum(axis=0) / counts.sum(axis=1)) @ counts
