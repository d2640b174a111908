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
    """
    tokens = np.asarray(loads).T.astype(np.int64)  # [E, D]
    total, replicas = tokens.sum(axis=1), counts.sum(axis=1)
    limit = -(-total // np.maximum(replicas, 1))  # ceil(cap)
    room = limit[:, None] * counts
    kept = np.minimum(room, tokens)
    flow = _spread(tokens - kept, room - kept)
    devices = np.arange(tokens.shape[1])
    flow[:, devices, devices] += kept  # a device that sends tokens has no free room
    return flow


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
