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

import collections
import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

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

    An AllReduce of s bytes over n devices on k nodes, m = n / k of a node, takes
    s · (near · (1 - 1/m) + far · (1 - 1/k) / m + each · (n - 1)): within the nodes first, then each
    device its share between nodes; and where all devices use one memory, as virtual ones do, the
    more of them the longer. BPS is s over that.

    Attributes:
        tokens_per_second: choices an expert handles on one device, forwards and backwards (TPS).
        bandwidth: [D, D] bytes/s from device (row) to device (column); the diagonal is infinite.
        nodes: int [D], the node of each device, from 0.
        sync_near: seconds a byte of an AllReduce within a node, the factor `near` above.
        sync_far: between nodes, `far`.
        token_bytes: of one token's vector on the wire.
        gradient_bytes: of one expert, as synchronised.
        state_bytes: of one expert's weights and optimizer state, as copied.
        sync_each: `each`.
        expert_seconds: of an expert on a device without any tokens (F).
        padded: whether every slot computes as many rows as the busiest one.
    """

    tokens_per_second: float
    bandwidth: np.ndarray
    nodes: np.ndarray
    sync_near: float
    sync_far: float
    token_bytes: float
    gradient_bytes: float
    state_bytes: float
    sync_each: float = 0.0
    expert_seconds: float = 0.0
    padded: bool = False

    def __post_init__(self):
        devices = len(self.nodes)
        if self.bandwidth.shape != (devices, devices) or not (self.bandwidth > 0).all():
            raise ValueError(
                f"bandwidth must be positive, [{devices}, {devices}] for {devices} devices; "
                f"got {self.bandwidth.shape}, least {self.bandwidth.min()}."
            )
        if not np.isinf(np.diagonal(self.bandwidth)).all():
            raise ValueError("bandwidth from a device to itself must be infinite.")
        if self.tokens_per_second <= 0:
            raise ValueError(f"tokens_per_second must be > 0, got {self.tokens_per_second}.")
        for name in (
            "sync_near",
            "sync_far",
            "token_bytes",
            "gradient_bytes",
            "state_bytes",
            "sync_each",
            "expert_seconds",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}.")
        object.__setattr__(self, "_per_byte", 1.0 / self.bandwidth)
        object.__setattr__(self, "_on_node", np.eye(int(self.nodes.max()) + 1)[self.nodes])

    @property
    def num_devices(self) -> int:
        """D."""
        return len(self.nodes)

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

    def to_be_equal(self, loads: np.ndarray, placement: Placement) -> np.ndarray:
        """The tokens that set the pace if unequal: of devices [D] or, where padded, of slots.

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
        devices = holds.sum(-1)
        nodes = np.maximum((holds @ self._on_node > 0).sum(-1), 1)
        each = np.maximum(devices, 1) / nodes
        near, far = 1 - 1 / np.maximum(each, 1), (1 - 1 / nodes) / each
        per_byte = self.sync_near * near + self.sync_far * far
        if self.sync_each:
            per_byte = per_byte + self.sync_each * (np.maximum(devices, 1) - 1)
        return np.where(holds, self.gradient_bytes * per_byte[..., None], 0.0)

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Measurements at start-up, from which `fit` makes a cost model.

    Attributes:
        compute: (tokens, seconds) of an expert forwards and backwards.
        exchange: (source, target, bytes, seconds) of a transfer between two devices.
        all_reduce: (devices, nodes, bytes, seconds), the devices spread evenly over the nodes.
    """

    compute: tuple[tuple[float, float], ...]
    exchange: tuple[tuple[int, int, float, float], ...]
    all_reduce: tuple[tuple[int, int, float, float], ...]

    def fit(
        self, nodes: Iterable[int], *, token_bytes: float, gradient_bytes: float, state_bytes: float
    ) -> tuple[CostModel, dict[str, float]]:
        """Rates that fit best, by least squares of relative errors.

        Pairs of devices that were not measured take the rate of pairs that lie like them: on one
        node, or on two.

        Args:
            nodes: [D], the node of each device, from 0.
            token_bytes: see CostModel.
            gradient_bytes: see CostModel.
            state_bytes: see CostModel.

        Returns:
            The model; and for each of the three kinds its largest relative error.

        Raises:
            ValueError: a kind was not measured.
        """
        nodes = np.array(list(nodes))
        for field in dataclasses.fields(self):
            if not getattr(self, field.name):
                raise ValueError(f"The profile holds no measurement of {field.name}.")
        if len(set(nodes)) > 1 and all(k == 1 for _, k, _, _ in self.all_reduce):
            raise ValueError(
                "The profile holds no all_reduce between nodes, but there are several."
            )
        tokens, seconds = np.array(self.compute).T
        (per_token, fixed), compute_error = _fit(
            np.stack([tokens, np.ones_like(tokens)], axis=1), seconds
        )
        exchange, exchange_error = _fit_pairs(self.exchange, nodes)
        n, k, size, seconds = np.array(self.all_reduce, float).T
        of_a_node = n / k
        amounts = [1 - 1 / of_a_node, (1 - 1 / k) / of_a_node, n - 1]
        (near, far, each), sync_error = _fit(size[:, None] * np.stack(amounts, axis=1), seconds)
        model = CostModel(
            tokens_per_second=1 / per_token,
            bandwidth=exchange,
            nodes=nodes,
            sync_near=near,
            sync_far=far,
            token_bytes=token_bytes,
            gradient_bytes=gradient_bytes,
            state_bytes=state_bytes,
            sync_each=each,
            expert_seconds=fixed,
        )
        errors = {"compute": compute_error, "exchange": exchange_error, "all_reduce": sync_error}
        return model, errors


def _fit_pairs(samples, nodes: np.ndarray) -> tuple[np.ndarray, float]:
    """Bandwidth [D, D] and the largest relative error of a measured pair."""
    by_pair, alike = collections.defaultdict(list), collections.defaultdict(list)
    for source, target, size, seconds in samples:
        by_pair[source, target].append((size, seconds))
        alike[nodes[source] == nodes[target]].append((size, seconds))
    bandwidth, errors = np.full((len(nodes), len(nodes)), np.inf), [0.0]
    for source, target in np.argwhere(~np.eye(len(nodes), dtype=bool)):
        near = nodes[source] == nodes[target]
        measured = by_pair.get((source, target))
        if not measured and not alike[near]:
            raise ValueError(
                f"The profile holds no exchange {'within a node' if near else 'between nodes'}, "
                f"but devices {source} and {target} lie so."
            )
        size, seconds = np.array(measured or alike[near], float).T
        (per_byte,), error = _fit(size[:, None], seconds)
        bandwidth[source, target] = 1 / per_byte
        errors.append(error if measured else 0.0)
    return bandwidth, max(errors)


def _fit(amounts: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, float]:
    """Non-negative seconds per unit of each column of amounts [n, kinds], and the largest error.

    A kind that the measurements cannot tell from those before it takes no time.
    """
    relative = amounts / seconds[:, None]
    rates, used = np.zeros(amounts.shape[1]), []
    for kind in range(amounts.shape[1]):
        if np.linalg.matrix_rank(relative[:, [*used, kind]]) > len(used):
            used.append(kind)
    while used:
        rates[:] = 0.0
        rates[used] = np.linalg.lstsq(relative[:, used], np.ones(len(seconds)))[0]
        if rates.min() >= 0:
            break
        used.remove(int(rates.argmin()))
    return rates, float(np.abs(relative @ rates - 1).max())
