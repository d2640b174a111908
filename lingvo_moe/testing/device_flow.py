"""Rules 1 and 2 of flexmoe/slot_routing.py in NumPy's exact integers.

D devices as sources, H the same devices as targets, E experts.
"""

import numpy as np


def device_flow(loads: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Tokens of each expert from each source device to each target device: rules 1 and 2.

    Args:
        loads: int [D, E], choices of each expert on each source.
        counts: int [E, D], slots of each expert on each device; an expert without slots must have
            no load.

    Returns:
        int64 [E, D, H]. Sums over H are the loads; sums over D are at most
        counts · ceil(load / slots).

    Raises:
        ValueError: shapes do not fit, a load is negative, or tokens have nowhere to go.
    """
    tokens = _checked(loads, counts).T.astype(np.int64)  # [E, D]
    total, replicas = tokens.sum(axis=1), counts.sum(axis=1)
    if np.any((replicas == 0) & (total > 0)):
        lost = int(np.flatnonzero((replicas == 0) & (total > 0))[0])
        raise ValueError(f"Expert {lost} has {total[lost]} tokens and no slot to take them.")
    limit = -(-total // np.maximum(replicas, 1))  # ceil(cap)
    room = limit[:, None] * counts
    kept = np.minimum(room, tokens)
    flow = _spread(tokens - kept, room - kept)
    devices = np.arange(tokens.shape[1])
    flow[:, devices, devices] += kept  # a device that sends tokens has no free room
    return flow


def _checked(loads: np.ndarray, counts: np.ndarray) -> np.ndarray:
    loads = np.asarray(loads)
    if loads.shape != counts.shape[::-1]:
        raise ValueError(
            f"Loads are [devices, experts] = {loads.shape}, but the placement has "
            f"{counts.shape[1]} devices and {counts.shape[0]} experts."
        )
    if not np.issubdtype(loads.dtype, np.integer) or loads.min(initial=0) < 0:
        raise ValueError(f"Loads must be counts, integers from 0 on; got {loads.dtype}.")
    return loads


def _spread(rest: np.ndarray, spare: np.ndarray) -> np.ndarray:
    """Rule 2: distributes rest [E, D] tokens to spare [E, H] room, which is sufficient."""
    flow = rest[:, :, None] * spare[:, None, :] // _at_least_one(spare)[:, :, None]
    left, free = rest - flow.sum(axis=2), spare - flow.sum(axis=1)
    last_token = np.cumsum(left, axis=1)  # [E, D]
    # Token i gets place floor(i · free / left) of the free room. So a device whose room ends at
    # place b ends at token ceil(b · left / free). It takes no more than its room, because left <=
    # free.
    tokens_before = -(-np.cumsum(free, axis=1) * last_token[:, -1:] // _at_least_one(free))
    ends = np.minimum(last_token[:, :, None], tokens_before[:, None, :])
    begins = np.maximum(
        (last_token - left)[:, :, None],
        np.concatenate([np.zeros_like(free[:, :1]), tokens_before[:, :-1]], axis=1)[:, None, :],
    )
    return flow + np.maximum(ends - begins, 0)


def _at_least_one(room: np.ndarray) -> np.ndarray:
    return np.maximum(room.sum(axis=1, keepdims=True), 1)
