"""The time of collectives: α for each hop of a message, plus bytes / β.

A `Group` is the devices along some axes of a mesh. An `Interconnect` is a policy for the links
between them: a torus, or hosts behind a switch. Units are seconds, bytes and bytes/s; links have
their full speed.
"""

import abc
import dataclasses
import functools
import math

import numpy as np

from lingvo_moe.sbp.types import Mesh


@dataclasses.dataclass(frozen=True)
class Group:
    """Devices of one collective; neighbours in the row-major order of a mesh are physical ones."""

    # (size, stride) of each of its axes of more than one device, outermost first; a stride is the
    # distance between neighbours along the axis, in devices
    axes: tuple[tuple[int, int], ...]

    @property
    def devices(self) -> int:
        """The number of devices."""
        return math.prod(size for size, _ in self.axes)

    @property
    def extent(self) -> int:
        """Devices in the smallest block of neighbours that contains the group."""
        return self.axes[0][0] * self.axes[0][1] if self.axes else 1

    def within(self, block: int) -> int:
        """Devices of the group in a block of neighbours, such as a host or the cores of a chip."""
        return math.prod(min(size, max(block // stride, 1)) for size, stride in self.axes)


@functools.cache
def group(mesh: Mesh, axes: tuple[str, ...]) -> Group:
    """The devices along some axes of a mesh, for a fixed position along the other axes."""
    strides = [math.prod(mesh.shape[i + 1 :]) for i in range(len(mesh.axes))]
    places = zip(mesh.axes, mesh.shape, strides, strict=True)
    return Group(
        tuple((size, stride) for axis, size, stride in places if axis in axes and size > 1)
    )


def block(devices: int) -> Group:
    """A group of neighbours."""
    return Group(((devices, 1),) if devices > 1 else ())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interconnect(abc.ABC):
    """The links between devices."""

    @abc.abstractmethod
    def all_reduce_seconds(self, size: float, group: Group) -> float:
        """Time to sum an array of `size` bytes that each device of the group holds."""

    @abc.abstractmethod
    def all_to_all_seconds(self, size: float, group: Group) -> float:
        """Time of an AllToAll: each device sends `size` bytes in all, equal shares to each."""

    @abc.abstractmethod
    def two_levels(self, devices: int, memory: float) -> "Switched":
        """An approximation by hosts and a network between them, for large messages among so many
        devices, with this speed (bytes/s) between devices of one chip. The links have no hops;
        `remote` is the bytes/s of a device while all exchange."""

    def seconds(self, kind: str, size: float, group: Group) -> float:
        """Time of a collective of HLO's kind, while other groups along the same axes do the same.

        The size is that of `hlo.Collective.bytes`: a device's piece for an all-to-all, else the
        whole array of a group.
        """
        if group.devices == 1:
            return 0.0
        if kind == "all-to-all":
            return self.all_to_all_seconds(size, group)
        # An all-gather or a reduce-scatter is half of an all-reduce.
        return self.all_reduce_seconds(size, group) / (1 if kind == "all-reduce" else 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Torus(Interconnect):
    """TPU chips in a grid whose edges wrap around, as nearly square as possible.

    A block of neighbours counts as a square or cube of the grid. A group with gaps, along an outer
    axis of a mesh, uses one dimension of the grid for its rings.
    """

    dims: int  # of the grid
    link: float  # bytes/s of one link in one direction; a chip has 2·dims of them
    cores: int = 1  # devices of one chip, which share its links
    hop: float = 0.0  # seconds of a message from a chip to the next

    def all_reduce_seconds(self, size, group):
        # Ring reduce-scatter, then all-gather, each sending (n-1)/n of the array, over all links at
        # once. The cores of a chip add theirs up before, or, of different groups, share its links.
        near = group.within(self.cores)
        chips = group.devices / near
        if chips <= 1:
            return 0.0
        dims = self.dims if group.extent == group.devices else 1
        hops = 2 * dims * (chips ** (1 / dims) - 1)
        sharing = self.cores / near if group.extent > group.devices else 1
        return hops * self.hop + 2 * size * sharing * (1 - 1 / chips) / (2 * dims * self.link)

    def all_to_all_seconds(self, size, group):
        # A cut across the longest side separates 2·chips/side links, because the grid wraps. Half
        # of the chips send half of their data across: n/2 · s/2 bytes one way. So s·side/8/link:
        # O(√D) in 2-D. A group with gaps shares the links of its whole block with the groups in its
        # gaps.
        near = group.within(self.cores)
        if group.devices <= near:
            return 0.0
        per_chip, chips = size * self.cores, group.extent / self.cores
        side = max(chips ** (1 / self.dims), 2)
        across = per_chip * side / (8 * self.link)
        out_of_a_chip = per_chip * (1 - near / group.devices) / (2 * self.dims * self.link)
        return self.dims * side / 2 * self.hop + max(across, out_of_a_chip)

    def two_levels(self, devices, memory):
        # All pairs share the links: the bandwidth of a pair is that of a full exchange.
        beyond = max(devices - self.cores, 0)
        if not beyond:
            return Switched(node=self.cores, local=memory, remote=memory)
        seconds = dataclasses.replace(self, hop=0.0).all_to_all_seconds(1.0, block(devices))
        return Switched(node=self.cores, local=memory, remote=beyond / devices / seconds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Switched(Interconnect):
    """Hosts of devices behind a fast switch, and a slower network between hosts: GPUs, CPUs."""

    node: int  # devices of a host
    local: float  # bytes/s of a device within its host, one direction
    remote: float  # bytes/s of a device's share of its host's network, one direction
    local_hop: float = 0.0  # seconds of a message within a host
    remote_hop: float = 0.0  # seconds of a message between hosts
    # seconds per byte that each additional device adds to an AllReduce, if all of them share one
    # memory, as virtual devices do
    crowding: float = 0.0

    def nodes(self, devices: int) -> np.ndarray:
        """int [D], the host of each device."""
        return np.arange(devices) // self.node

    def bandwidth(self, devices: int) -> np.ndarray:
        """Bytes/s [D, D] from device (row) to device (column), infinite from one to itself."""
        nodes = self.nodes(devices)
        result = np.where(nodes[:, None] == nodes, self.local, self.remote)
        np.fill_diagonal(result, np.inf)
        return result

    def all_reduce_seconds(self, size, group):
        near = group.within(self.node)
        return float(self.sum_seconds(size, near, group.devices / near))

    def sum_seconds(self, size: float, near: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """An AllReduce over `near` devices on each of `nodes` hosts, for arrays of groups.

        It is a ring within each host. Then each device sums its share of the host's sum over a tree
        of hosts.
        """
        hops = 2 * (near - 1) * self.local_hop + 2 * np.log2(nodes) * self.remote_hop
        inside, beyond = all_reduce_parts(near, nodes)
        crowded = (near * nodes - 1) * self.crowding
        return hops + size * (inside / self.local + beyond / self.remote + crowded)

    def all_to_all_seconds(self, size, group):
        # Both networks work at the same time; messages to the other devices follow one another.
        near, devices = group.within(self.node), group.devices
        inside = (near - 1) * self.local_hop + size * (near - 1) / devices / self.local
        if devices == near:
            return inside
        beyond = size * (devices - near) / devices / self.remote
        return max(inside, (devices / near - 1) * self.remote_hop + beyond)

    def two_levels(self, devices, memory):
        return dataclasses.replace(self, local_hop=0.0, remote_hop=0.0)


def all_reduce_parts(near: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The parts of an array that a device sends in an AllReduce: within its host, between hosts."""
    return 2 * (1 - 1 / near), 2 * (1 - 1 / nodes) / near
