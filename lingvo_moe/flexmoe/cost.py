"""The cost of a placement: seconds of one step of one Mixture-of-Experts layer, and of moves.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, section 3 (cost model). With I tokens of expert
e on device g, the time of a step is that of the busiest device,

    T = max_g Σ_{e on g} ( F + I / TPS  +  4 Σ_{g'} (from g') · token bytes / Bw[g', g]
                           +  gradient bytes / BPS(all devices), if several devices hold e )

F is not in the paper: it is the time of an expert without tokens (see rates.py). A compiled
program differs from the paper (cost_on_mesh_test.py): groups of devices are the same in each step,
so all take part in the sum of an expert's gradients. Each pair of devices has a buffer as large as
the busiest pair needs. `expected`, by which the policy maker searches, has the pairs' own tokens;
`of_flow` has the buffers.

D devices (as sources), H the same as targets, E experts; "..." any leading dimensions.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from lingvo_moe.flexmoe.placement import Placement, relocation
from lingvo_moe.hardware.links import Switched
from lingvo_moe.megablocks.laddered import rooms

_EXCHANGES = 4  # dispatch and combine, forwards and backwards


class Seconds(NamedTuple):
    """Time of devices, each [..., D]."""

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
        """Seconds of tokens that are sent as in `flow`, of all experts together.

        Each choice counts as a token. `Dropless` sends a token once to a device, so with several
        choices a token its buffers may be smaller.

        Args:
            flow: [E, D, H] tokens from source to target.
            counts: [E, H], the slots of each expert on each device.

        Returns:
            [H] each.
        """
        rows, pairs = flow.sum(axis=(0, 1)), flow.sum(axis=0)
        held = self.expert_seconds * np.count_nonzero(counts, axis=0)
        received = _buffer(pairs) * self._per_byte.sum(axis=0)
        return Seconds(
            held + rows / self.tokens_per_second,
            _EXCHANGES * self.token_bytes * received,
            self.sync_seconds(counts).sum(axis=0),
        )

    def sync_seconds(self, counts: np.ndarray) -> np.ndarray:
        """[..., D], seconds to sum an expert's gradients; 0 if a single device holds it."""
        several = np.count_nonzero(counts, axis=-1) > 1
        seconds = several * self.all_reduce_seconds(self.num_devices)
        return np.broadcast_to(seconds[..., None], counts.shape)

    def all_reduce_seconds(self, devices: int) -> float:
        """Seconds to sum an expert's gradients over the first devices."""
        nodes = np.unique(self.wires.nodes(devices)).size
        each = np.array(devices / nodes), np.array(nodes)
        return float(self.wires.sum_seconds(self.gradient_bytes, *each))

    def adjustment_seconds(self, before: Placement, after: Placement) -> float:
        """Seconds of the copies from one placement to another, one after the other.

        Each is sent from device to device; within a device it is free.
        """
        sources, width = relocation(before, after).ravel(), before.slots_per_device
        to = np.flatnonzero(sources >= 0)
        return self.state_bytes * float(self._per_byte[sources[to] // width, to // width].sum())


def _buffer(pairs: np.ndarray) -> int:
    """Rows of the buffer of each pair of devices that exchange tokens [D, H].

    It is the lowest rung (see Laddered) on which a buffer has room for the busiest pair, and all
    buffers of a device for the busiest device.
    """
    devices, size = len(pairs), int(pairs.sum(axis=1).max())
    sent, busiest = (pairs * ~np.eye(devices, dtype=bool)).max(), pairs.sum(axis=0).max()
    if not sent:
        return 0
    sizes = zip(rooms(size / devices, size), rooms(size, size * devices), strict=True)
    return next(pair for pair, device in sizes if pair >= sent and device >= busiest)


def balance_ratio(device_tokens: np.ndarray) -> float:
    """The busiest device's tokens [D] divided by the mean; 1 is balance. 1 without tokens."""
    mean = device_tokens.mean()
    return float(device_tokens.max() / mean) if mean > 0 else 1.0


def device_tokens(loads: np.ndarray, placement: Placement) -> np.ndarray:
    """float [D], tokens of each device if the replicas share an expert's tokens [D, E] evenly."""
    counts = placement.counts()
    return (loads.sum(axis=0) / counts.sum(axis=1)) @ counts
