"""Training of one MoE layer whose popular experts change slowly, on eight devices."""

import functools

import numpy as np

from lingvo_moe.flexmoe.cost import CostModel
from lingvo_moe.flexmoe.policy_maker import PolicyMaker
from lingvo_moe.flexmoe.rebalance import Rebalanced
from lingvo_moe.flexmoe.scheduler import Scheduler
from lingvo_moe.flexmoe.vexperts import VExperts
from lingvo_moe.hardware.links import Switched
from lingvo_moe.moe.ragged import Ragged
from lingvo_moe.nn.layer import init_theta
from lingvo_moe.runtimes.local import Local
from lingvo_moe.testing.regression import Regression

DEVICES = EXPERTS = MODEL = 8
TOKENS = 128  # of a device
PERIOD = 200  # steps in which popularity comes full circle
TABLES = {"placement": EXPERTS}
SLOTS = VExperts(devices=DEVICES, slots_per_device=4, factors=(2.0, 4.0))


def task(dispatcher=SLOTS):
    """The task of one layer; by default its experts can move between devices (VExperts)."""
    return Regression(dispatcher, groups=DEVICES, num_experts=EXPERTS, model_dim=MODEL)


def batch(step):
    """Tokens whose elements select two experts; the popular experts rotate over all experts."""
    rng = np.random.default_rng(step)
    angle = 2 * np.pi * (np.arange(EXPERTS) / EXPERTS - step / PERIOD)
    popularity = np.exp(1.5 * np.cos(angle))
    scores = np.log(popularity) + rng.gumbel(size=(DEVICES, TOKENS, EXPERTS))
    order = np.argsort(-scores, axis=-1)
    one_hot = np.eye(EXPERTS)
    wanted = 3 * one_hot[order[..., 0]] + 2 * one_hot[order[..., 1]]
    return {"inputs": (wanted + 0.1 * rng.normal(size=wanted.shape)).astype(np.float32)}


def scheduler():
    """Compute is expensive; exchange and copies are cheap."""
    bandwidth = np.where(np.eye(DEVICES, dtype=bool), np.inf, 1e9)
    cost = CostModel(
        tokens_per_second=1e4,
        bandwidth=bandwidth,
        wires=Switched(node=DEVICES, local=2e9, remote=2e9),
        token_bytes=4 * MODEL,
        gradient_bytes=8 * MODEL * 8,
        state_bytes=24 * MODEL * 8,
    )
    return Scheduler(maker=PolicyMaker(cost=cost))


def start(runtime, weights):
    """The runtime in its initial state, with the same weights for each dispatcher.

    Args:
        runtime: of `task`.
        weights: float32 [M, E], of the router.
    """
    runtime.initialize(3)
    state = {name: np.asarray(value) for name, value in runtime.state().items()}
    experts = init_theta(task(Ragged()).weights(), 3).experts
    slots = state.get("theta/placement", np.arange(EXPERTS)).ravel()
    state |= {f"theta/experts/{n}": w.numpy()[slots] for n, w in experts.items()}
    state["theta/gate"] = weights
    runtime.restore(state)
    return runtime


def rebalanced(runtime):
    """A runtime that moves experts by the scheduler."""
    return start(Rebalanced(runtime, TABLES, scheduler()), 4 * np.eye(MODEL, dtype=np.float32))


def local(dispatcher=SLOTS):
    """A runtime of one device."""
    one = task(dispatcher)
    return Local(one, one.step())


@functools.cache
def without_slots(steps):
    """The losses if each expert has one replica and unlimited capacity."""
    runtime = start(local(Ragged()), 4 * np.eye(MODEL, dtype=np.float32))
    return [float(runtime.train(batch(step)).nll) for step in range(steps)]


def assert_balances_and_learns(metrics):
    """Asserts that moves of experts balance the load and change no loss.

    The largest load of a device, divided by the mean, is above 2 at first; from step 20 on it is
    below 1.2 on average, and never above 1.4. The losses equal those of `without_slots`.
    """
    ratios = [float(m.balance_ratio[0]) for m in metrics]
    assert ratios[0] > 2
    assert np.mean(ratios[20:]) < 1.2
    assert max(ratios[20:]) < 1.4
    losses = [float(m.nll) for m in metrics]
    np.testing.assert_allclose(losses, without_slots(len(metrics)), rtol=1e-4)
    assert sum(float(m.dropped) for m in metrics) == 0
    for m in metrics:
        assert float(np.sum(m.source_load)) == 2 * TOKENS * DEVICES
