"""Token-choice routing with loops over dicts, as a reference for tests of gatings.

G groups, S tokens per group, E experts, K choices.
"""

import numpy as np

CASES = (
    "random",
    "padding",
    "ties",
    "one_expert_takes_all",
    "one_token",
    "capacity_one",
    "unlimited",
    "single_expert",
    "more_experts_than_tokens",
    "a_group_of_padding",
)


def case(name: str) -> tuple[np.ndarray, np.ndarray, int | None]:
    """Logits float32 [G, S, E], mask bool [G, S] and capacity of one of CASES."""
    rng = np.random.default_rng(CASES.index(name))
    shapes = {
        "one_token": (1, 1, 4),
        "single_expert": (2, 9, 1),
        "more_experts_than_tokens": (2, 3, 16),
    }
    shape = shapes.get(name, (3, 24, 4))
    logits = rng.normal(0, 2, shape).astype(np.float32)
    mask = np.ones(shape[:2], bool)
    if name in ("padding", "ties", "capacity_one", "more_experts_than_tokens"):
        mask = rng.random(shape[:2]) > 0.3
    if name == "a_group_of_padding":
        mask[1] = False
    if name == "ties":
        logits = rng.integers(0, 3, shape).astype(np.float32)
    if name == "one_expert_takes_all":
        logits[..., 2] += 20.0
    return logits, mask, {"capacity_one": 1, "unlimited": None}.get(name, 5)


def softmax(logits: np.ndarray) -> np.ndarray:
    """float64, over the last axis."""
    powers = np.exp(logits.astype(float) - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def queue(choices: dict, num_choices: int, num_experts: int, capacity: int | None):
    """The queues of one group.

    Args:
        choices: real token -> [(expert, weight), …], best first.
        num_choices: K.
        num_experts: E.
        capacity: C, or None for no limit.

    Returns:
        {(token, expert): (position, weight)} of the choices that fit, and the queue lengths after
        the first choices.
    """
    length, fits, first = [0] * num_experts, {}, None
    for k in range(num_choices):
        for token in sorted(choices):
            expert, weight = choices[token][k]
            if capacity is None or length[expert] < capacity:
                fits[token, expert] = (length[expert], weight)
            length[expert] += 1
        first = first or list(length)
    return fits, first


def take(gates: np.ndarray, mask: np.ndarray, capacity: int) -> dict:
    """The choices of experts in expert-choice routing.

    Args:
        gates: [S, E] of one group.
        mask: bool [S].
        capacity: C.

    Returns:
        {(token, expert): (position, weight)}: each expert's C best real tokens, the earlier first
        of equals.
    """
    taken: dict[tuple[int, int], tuple[int, float]] = {}
    for e in range(gates.shape[-1]):
        order = sorted(np.flatnonzero(mask), key=lambda s: (-gates[s, e], s))
        taken |= {(int(s), e): (c, gates[s, e]) for c, s in enumerate(order[:capacity])}
    return taken


def best(logits: np.ndarray, k: int, normalize: bool) -> list[tuple[int, float]]:
    """[(expert, weight)] of the k best experts of one token, the lower first of equals.

    Args:
        logits: [E].
        k: at most E of them.
        normalize: divides the weights by their sum.
    """
    gates = softmax(logits)
    experts = sorted(range(len(logits)), key=lambda e: (-logits[e], e))[:k]
    total = sum(gates[e] for e in experts) if normalize else 1.0
    return [(e, gates[e] / total) for e in experts]


def dispatched(routing, group: int) -> dict:
    """{(token, expert): (position, weight)} of a Routing's group."""
    expert, position, weight, taken = (np.array(field)[group] for field in routing[:4])
    assert not np.any(weight[~taken])
    return {
        (int(s), int(expert[s, k])): (int(position[s, k]), float(weight[s, k]))
        for s, k in np.argwhere(taken)
    }


def assert_same(actual: dict, expected: dict) -> None:
    """Compares two dicts as `dispatched` returns them: weights to 1e-5, the rest exactly."""
    assert actual.keys() == expected.keys()
    for key, (position, weight) in expected.items():
        assert actual[key][0] == position
        np.testing.assert_allclose(actual[key][1], weight, rtol=1e-5)


def assert_routes(routing, choose, logits, mask, capacity, num_choices=1) -> None:
    """Compares positions, weights, load and drop rate with those of the loops.

    Args:
        routing: a Routing.
        choose: (group, token) -> [(expert, weight), …].
        logits, mask, capacity: the inputs of the routing.
        num_choices: K.
    """
    firsts, kept = np.zeros(logits.shape[-1]), 0
    for g in range(len(logits)):
        choices = {s: choose(g, s) for s in np.flatnonzero(mask[g])}
        expected, first = queue(choices, num_choices, logits.shape[-1], capacity)
        assert_same(dispatched(routing, g), expected)
        firsts += first
        kept += len(expected)
    wanted = num_choices * mask.sum()
    np.testing.assert_allclose(routing.stats.load, firsts / max(firsts.sum(), 1), rtol=1e-5)
    np.testing.assert_allclose(routing.stats.drop_rate, 1 - kept / max(wanted, 1), atol=1e-6)


def balance(logits: np.ndarray, mask: np.ndarray) -> float:
    """E · Σ_e f_e·P_e, averaged over groups with tokens; f counts each token's best expert."""
    losses = []
    for row, real in zip(softmax(logits), mask, strict=True):
        if real.any():
            best = [int(np.argmax(gates)) for gates in row[real]]
            share = [best.count(e) / len(best) for e in range(row.shape[-1])]
            losses.append(row.shape[-1] * sum(share * row[real].mean(axis=0)))
    return float(np.mean(losses)) if losses else 0.0
