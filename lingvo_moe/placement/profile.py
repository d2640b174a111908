"""Measures at start-up what the cost model of expert placement needs, on the devices that JAX sees.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, section 3 (cost model): TPS, Bw and BPS are
profiled before training. Every round takes each measurement once, so that a slow spell of the
machine falls on all of them.

D devices, M model, H hidden.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lingvo_moe.placement.cost import Profile

_AXIS = "device"


def timed(
    calls: Sequence[Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> np.ndarray:
    """[rounds, calls], seconds of each until its arrays are there; compiled beforehand.

    Args:
        calls: each returns arrays of JAX's.
        rounds: how often each is timed, in turn with all the others.
        clock: tells seconds; by time.process_time other programs' work does not count.
    """
    for call in calls:
        jax.block_until_ready(call())
    seconds = np.empty((rounds, len(calls)))
    for i in range(rounds):
        for j, call in enumerate(calls):
            start = clock()
            jax.block_until_ready(call())
            seconds[i, j] = clock() - start
    return seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What there is to measure.

    Attributes:
        model_dim: M of an expert.
        hidden_dim: H of an expert.
        dtype: of activations and gradients.
        devices: D of this process; None for all that it has.
        nodes: int [D], the node of each, from 0; None if all are on one.

    Raises:
        ValueError: fewer than two devices, or as many nodes are not given.
    """

    model_dim: int
    hidden_dim: int
    dtype: str = "float32"
    devices: tuple[jax.Device, ...] | None = None
    nodes: tuple[int, ...] | None = None

    def __post_init__(self):
        devices = tuple(jax.local_devices() if self.devices is None else self.devices)
        nodes = (0,) * len(devices) if self.nodes is None else tuple(self.nodes)
        if len(nodes) != len(devices) or len(devices) < 2:
            raise ValueError(
                f"Needs two devices or more and the node of each; got {len(devices)} devices and "
                f"nodes {nodes}."
            )
        object.__setattr__(self, "devices", devices)
        object.__setattr__(self, "nodes", nodes)

    @property
    def token_bytes(self) -> int:
        """Of one token's vector."""
        return self.model_dim * jnp.dtype(self.dtype).itemsize

    @property
    def gradient_bytes(self) -> int:
        """Of one expert's gradients."""
        return 2 * self.hidden_dim * self.token_bytes

    def expert_step(self, device: int, tokens: int) -> Callable[[], Any]:
        """An expert forwards and backwards on one device.

        Args:
            device: its number.
            tokens: rows that the expert gets.
        """
        shapes = (
            (tokens, self.model_dim),
            (self.model_dim, self.hidden_dim),
            (self.hidden_dim, self.model_dim),
            (tokens, self.model_dim),
        )
        arrays = [self._put(np.full(shape, 0.01), device) for shape in shapes]
        return lambda: _forwards_and_backwards(*arrays)

    def transfer(self, source: int, target: int, size: float) -> Callable[[], Any]:
        """So many bytes from one device to another; at least one element."""
        array = self._put(np.zeros(self._elements(size)), source)
        return lambda: jax.device_put(array, self.devices[target])

    def all_reduce(self, group: Sequence[int], size: float) -> Callable[[], Any]:
        """The sum of so many bytes of each device of a group, for all of them."""

        def add(x):
            return jax.lax.psum(x, _AXIS)

        return self._collective(add, group, self._elements(size))

    def all_to_all(self, group: Sequence[int], size: float) -> Callable[[], Any]:
        """So many bytes from each device of a group to each of them."""

        def exchange(x):
            parts = x.reshape(len(group), -1)
            return jax.lax.all_to_all(parts, _AXIS, 0, 0).reshape(1, -1)

        return self._collective(exchange, group, len(group) * self._elements(size))

    def _collective(self, function, group, elements):
        mesh = Mesh(np.array([self.devices[i] for i in group]), (_AXIS,))
        cut = PartitionSpec(_AXIS)
        values = np.repeat(np.arange(len(group), dtype=np.float32)[:, None], elements, axis=1)
        array = jax.device_put(values.astype(self.dtype), NamedSharding(mesh, cut))
        program = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=cut, out_specs=cut))
        return lambda: program(array)

    def _put(self, values, device):
        return jax.device_put(values.astype(self.dtype), self.devices[device])

    def _elements(self, size):
        return max(round(size / jnp.dtype(self.dtype).itemsize), 1)


class Probes(NamedTuple):
    """What is timed for a profile.

    Attributes:
        kinds: field of Profile -> what a row of it begins with -> the call whose seconds end it.
    """

    kinds: dict[str, dict[tuple, Callable[[], Any]]]

    @property
    def calls(self) -> list[Callable[[], Any]]:
        """All of them, for `timed`."""
        return [call for kind in self.kinds.values() for call in kind.values()]

    def profile(self, seconds: Iterable[float]) -> Profile:
        """From the seconds of each of `calls`."""
        left = iter(seconds)
        return Profile(
            **{
                name: tuple((*what, float(next(left))) for what in kind)
                for name, kind in self.kinds.items()
            }
        )


def probes(machine: Machine, tokens: Sequence[int], sizes: Sequence[float]) -> Probes:
    """What `measure` times; arguments as there."""
    pairs, groups = _pairs(machine.nodes), _groups(machine.nodes)
    sizes = [size * machine.gradient_bytes for size in sizes]
    nodes = [len({machine.nodes[i] for i in group}) for group in groups]
    return Probes(
        {
            "compute": {(n,): machine.expert_step(0, n) for n in tokens},
            "exchange": {
                (source, target, size): machine.transfer(source, target, size)
                for source, target in pairs
                for size in sizes
            },
            "all_reduce": {
                (len(group), k, size): machine.all_reduce(group, size)
                for group, k in zip(groups, nodes, strict=True)
                for size in sizes
            },
        }
    )


def measure(
    machine: Machine,
    tokens: Sequence[int] = (128, 512, 2048),
    sizes: Sequence[float] = (0.5, 2.0),
    rounds: int = 11,
) -> Profile:
    """Times experts, transfers and AllReduces: what `Profile.fit` needs.

    Everything but an AllReduce runs alone on the machine. Seconds to about a minute, by the size of
    the expert.

    Args:
        machine: what to measure.
        tokens: that an expert gets.
        sizes: of AllReduces and transfers, as multiples of an expert's gradients.
        rounds: how often each is timed; the median counts.
    """
    wanted = probes(machine, tokens, sizes)
    return wanted.profile(np.median(timed(wanted.calls, rounds), axis=0))


def _pairs(nodes: Sequence[int]) -> list[tuple[int, int]]:
    """A pair of devices of each kind that there is: on one node, on two."""
    kinds: dict[bool, tuple[int, int]] = {}
    for target in range(1, len(nodes)):
        for source in range(target):
            kinds.setdefault(nodes[source] == nodes[target], (source, target))
    return list(kinds.values())


def _groups(nodes: Sequence[int]) -> list[list[int]]:
    """2, 4, 8, … and all devices of the first node; then one and all of two and of all nodes.

    Nodes of which groups take several devices are taken to be equally large.
    """
    members: dict[int, list[int]] = {}
    for device, node in enumerate(nodes):
        members.setdefault(node, []).append(device)
    lists = list(members.values())
    first = lists[0]
    groups = [first[: 2**i] for i in range(1, len(first).bit_length())] + [first]
    for count in (2, len(lists)):
        for each in (1, min(map(len, lists))):
            groups.append([device for node in lists[:count] for device in node[:each]])
    return list({tuple(g): g for g in groups if len(g) > 1}.values())


@jax.jit
def _forwards_and_backwards(inputs, wi, wo, upstream):
    """Of a feed-forward network: its outputs, and the gradients of inputs and weights."""
    outputs, pull = jax.vjp(lambda x, a, b: jax.nn.relu(x @ a) @ b, inputs, wi, wo)
    return outputs, pull(upstream)
