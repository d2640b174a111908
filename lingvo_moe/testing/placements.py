"""Placements drawn at random, and the cost of devices with round numbers."""

from typing import Any

from lingvo_moe.flexmoe.cost import CostModel
from lingvo_moe.flexmoe.placement import Expand, Migrate, Placement, Replace, Shrink
from lingvo_moe.hardware.links import Switched


def random_move(rng, placement):
    """Any move, valid or not."""
    size = placement.slots.size
    expert, first, second = rng.integers([placement.num_experts, size, size]).tolist()
    return (Shrink(first), Expand(expert, first), Replace(expert, first), Migrate(first, second))[
        rng.integers(4)
    ]


def random_placement(rng):
    """A placement of random size after a hundred random moves, of which only valid ones count."""
    devices, per_device = rng.integers(1, 7), rng.integers(1, 5)
    placement = Placement.even(devices, per_device, rng.integers(1, devices * per_device + 1))
    for _ in range(100):
        try:
            placement = random_move(rng, placement).apply(placement)
        except ValueError:
            continue
    return placement


def make_cost(devices=4, node=2, crowding=0.0, **changes):
    """Round numbers: 100 tokens/s; 40 bytes/s within a node, 10 between; 1 byte a token."""
    fields: dict[str, Any] = {
        "tokens_per_second": 100.0,
        "bandwidth": Switched(node=node, local=40.0, remote=10.0).bandwidth(devices),
        "wires": Switched(node=node, local=4.0, remote=1.0, crowding=crowding),
        "token_bytes": 1.0,
        "gradient_bytes": 8.0,
        "state_bytes": 80.0,
    }
    return CostModel(**(fields | changes))
