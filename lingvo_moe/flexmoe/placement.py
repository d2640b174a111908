"""Placements of experts: a table of slots, and the moves that change it.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, sections 3 and 4. A slot (the paper's vExpert)
holds one replica of one expert on one device.

D devices, K slots of a device, E experts. A slot's number is device · K + its index on the device.
"""

import abc
import dataclasses

import numpy as np

EMPTY = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Placement:
    """The expert in each slot; every expert has at least one slot.

    Attributes:
        slots: int32 [D, K], an expert's number or EMPTY; read-only. The same table is a tensor of
            the training state, and the only input of routing and moves besides the loads.
        num_experts: E.

    Raises:
        ValueError: a wrong shape, an unknown expert, or an expert without a slot.
    """

    slots: np.ndarray
    num_experts: int

    def __post_init__(self):
        slots = np.array(self.slots, np.int32)
        held = np.bincount(slots[slots != EMPTY], minlength=self.num_experts)
        if slots.ndim != 2 or len(held) > self.num_experts or not held.all():
            raise ValueError(
                f"The slots [devices, slots of each] of {self.num_experts} experts must hold every "
                f"expert, and the experts {np.flatnonzero(held).tolist()} are in {slots.shape}."
            )
        slots.setflags(write=False)
        object.__setattr__(self, "slots", slots)

    @staticmethod
    def even(devices: int, slots_per_device: int, num_experts: int) -> "Placement":
        """The even placement: numbers of slots differ by at most one, replicas are neighbours.

        If E is a multiple of D this is static expert parallelism: all slots of an expert are on one
        device.
        """
        total = devices * slots_per_device
        table = np.arange(total).reshape(devices, slots_per_device) * num_experts // total
        return Placement(table, num_experts)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Placement)
            and self.num_experts == other.num_experts
            and np.array_equal(self.slots, other.slots)
        )

    @property
    def num_devices(self) -> int:
        """D."""
        return self.slots.shape[0]

    @property
    def slots_per_device(self) -> int:
        """K."""
        return self.slots.shape[1]

    def counts(self) -> np.ndarray:
        """int64 [E, D], slots of each expert on each device."""
        counts = np.zeros((self.num_experts + 1, self.num_devices), np.int64)  # the last is EMPTY's
        np.add.at(counts, (self.slots, np.arange(self.num_devices)[:, None]), 1)
        return counts[:-1]

    def replace(self, changes: dict[int, int]) -> "Placement":
        """This placement with other contents in some slots: slot -> expert or EMPTY."""
        table = self.slots.copy()
        for slot, expert in changes.items():
            table.flat[slot] = expert
        return Placement(table, self.num_experts)

    def after(self, order: np.ndarray) -> "Placement":
        """This placement after copies, by their order (training.replicas.order_after)."""
        slots = np.append(self.slots, EMPTY)[order].reshape(self.slots.shape)
        return Placement(slots, self.num_experts)


class Move(abc.ABC):
    """One change of a placement."""

    @abc.abstractmethod
    def apply(self, placement: Placement) -> Placement:
        """The placement after the move; the argument is unchanged.

        Raises:
            ValueError: the move is not valid for this placement.
        """


@dataclasses.dataclass(frozen=True)
class Expand(Move):
    """Adds a replica of `expert` in the empty slot `slot`; copies weights and optimizer state."""

    expert: int
    slot: int

    def apply(self, placement):
        if placement.slots.flat[self.slot] != EMPTY:
            raise ValueError(f"{self}: the slot is not empty.")
        return placement.replace({self.slot: self.expert})


@dataclasses.dataclass(frozen=True)
class Shrink(Move):
    """Empties a slot, but not the last slot of an expert; nothing is copied."""

    slot: int

    def apply(self, placement):
        held = placement.slots.flat[self.slot]
        if held == EMPTY or np.count_nonzero(placement.slots == held) == 1:
            raise ValueError(f"{self}: the slot is empty, or the last one of expert {held}.")
        return placement.replace({self.slot: EMPTY})


@dataclasses.dataclass(frozen=True)
class Replace(Move):
    """Shrink and Expand in one slot: its replica is replaced by one of `expert`."""

    expert: int
    slot: int

    def apply(self, placement):
        return Expand(self.expert, self.slot).apply(Shrink(self.slot).apply(placement))


@dataclasses.dataclass(frozen=True)
class Migrate(Move):
    """Swaps the contents of two slots, to bring replicas closer or to use an idle device."""

    first: int
    second: int

    def apply(self, placement):
        held = placement.slots.ravel()[[self.first, self.second]].tolist()
        if held[0] == held[1]:
            raise ValueError(f"{self}: both slots hold expert {held[0]}.")
        return placement.replace({self.first: held[1], self.second: held[0]})


def relocation(before: Placement, after: Placement) -> np.ndarray:
    """The source slot of each slot's weights and optimizer state: many moves as one gather.

    A slot that keeps its expert is its own source. Any other slot copies from the first slot that
    held its expert before, on its own device if there is one.

    Returns:
        int32 [D, K], numbers of slots of `before`; -1 for slots that become empty.
    """
    sources = np.arange(before.slots.size, dtype=np.int32).reshape(before.slots.shape)
    device = sources // before.slots_per_device
    for slot in np.flatnonzero(before.slots != after.slots):
        expert = after.slots.flat[slot]
        fit = 2 * (before.slots == expert) + (device == device.flat[slot])
        sources.flat[slot] = -1 if expert == EMPTY else fit.argmax()
    return sources
