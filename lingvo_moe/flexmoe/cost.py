"""The cost of a placement: seconds of one step of one Mixture-of-Experts layer, and of moves.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, section 3 (cost model). With I tokens of expert
e on device g, the time of a step is that of the busiest device,

    T = max_g Σ_{e on g} ( F + I / TPS  +  4 Σ_{g'} (from g') · token bytes / Bw[g', g]
                           +  gradient bytes / BPS(all devices), if several devices hold e )

and the copy of a replica takes its bytes of weights and optimizer state / Bw. F is not in the
paper: it is the time to read an expert's weights and write their gradients, with few tokens too.
The paper sums gradients over the devices that hold e. A compiled program has the same groups in
each step, so all devices take part in each sum (training.replicas), and all have its time.

D devices (as sources), H the same as targets, E experts; "..." any leading dimensions.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from lingvo_moe.flexmoe.placement import Placement, relocation
from lingvo_moe.hardware.links import Switched

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
        wires: the links for sums of gradients: BPS is bytes divided by the seconds of their
            AllReduce. Nodes have `wires.node` devices each, in order.
        token_bytes: bytes of one token's vector when sent.
        gradient_bytes: bytes of one expert's gradients when summed.
        state_bytes: bytes of one expert's weights and optimizer state when copied.
        expert_seconds: time of an expert without tokens (F).
    """

    tokens_per_second: float
    bandwidth: np.ndarray
    wires: Switched
    token_bytes: float
    gradient_bytes: float
    state_bytes: float
    expert_seconds: float = 0.0

    @functools.cached_property
    def _per_byte(self) -> np.ndarray:
        """Seconds [D, H]."""
        return 1.0 / self.bandwidth

    @property
    def num_devices(self) -> int:
        """D."""
        return len(self.bandwidth)

    def expected(self, loads: np.ndarray, counts: np.ndarray) -> Seconds:
        """Seconds under flexible routing, without rounding to whole tokens.

        It is fast enough to evaluate hundreds of placements a step.

        Args:
            loads: float [..., D], an expert's tokens on each source.
            counts: [..., D], the slots of that expert on each device; their sum is at least 1.

        Returns:
            [..., D] each.
        """
        room = counts * (loads.sum(-1) / counts.sum(-1))[..., None]
        kept = np.minimum(room, loads)
        rest, spare = loads - kept, room - kept
        share = spare / np.maximum(spare.sum(-1, keepdims=True), 1e-30)
        arriving = share * (rest @ self._per_byte)
        return Seconds(
            self.expert_seconds * (counts > 0) + room / self.tokens_per_second,
            _EXCHANGES * self.token_bytes * arriving,
            self.sync_seconds(counts),
        )

    def of_flow(self, flow: np.ndarray, counts: np.ndarray) -> Seconds:
        """Seconds of tokens that are sent as in `flow`.

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

    def exchange_seconds_per_token(self) -> float:
        """Seconds of all exchanges of a token between two devices, mean over pairs."""
        pairs = self.num_devices * (self.num_devices - 1)
        return _EXCHANGES * self.token_bytes * float(self._per_byte.sum()) / max(pairs, 1)

    def sync_seconds(self, counts: np.ndarray) -> np.ndarray:
        """[..., D], seconds to sum an expert's gradients; 0 if a single device holds it."""
        several = np.count_nonzero(counts, axis=-1) > 1
        seconds = several * self.all_reduce_seconds(self.num_devices)
        return np.broadcast_to(seconds[..., None], counts.shape)

    def all_reduce_seconds(self, devices: int) -> float:
        """Seconds to sum an expert's gradients over the first devices."""
        nodes = np.unique(self.wires.nodes(devices)).size
        group = np.array(devices / nodes), np.array(nodes)
        return float(self.wires.sum_seconds(self.gradient_bytes, *group))

    def adjustment_seconds(self, before: Placement, after: Placement) -> float:
        """Seconds of the copies from one placement to another.

        Devices work in parallel, and send and receive at the same time, one copy after another. The
        busiest device determines the time. Copies within a device are free.
        """
        if before == after:
            return 0.0
        source = relocation(before, after, self.bandwidth) // before.slots_per_device  # [D, K]
        target = np.broadcast_to(np.arange(self.num_devices)[:, None], source.shape)
        copied = self.state_bytes * self._per_byte[source, target]
        sends = np.bincount(source.ravel(), copied.ravel(), minlength=self.num_devices)
        return float(max(sends.max(), copied.sum(axis=1).max()))


def balance_ratio(device_tokens: np.ndarray) -> float:
    """The busiest device's tokens [D] divided by the mean; 1 is balance. 1 without tokens."""
    mean = device_tokens.mean()
    return float(device_tokens.max() / mean) if mean > 0 else 1.0


def device_tokens(loads: np.ndarray, placement: Placement) -> np.ndarray:
    """float [D], tokens of each device if the replicas share an expert's tokens [D, E] evenly."""
    counts = placement.counts()
    return (loads.sum(axis=0) / counts.sum(axis=1)) @ counts
