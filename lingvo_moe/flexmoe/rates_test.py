"""Tests of the cost model from hardware: rates by hand, and as the planner's collectives."""

import dataclasses

import numpy as np
import pytest

from lingvo_moe.flexmoe.rates import ExpertShape, Profile, from_hardware
from lingvo_moe.hardware.chips import HARDWARE, Efficiency
from lingvo_moe.hardware.links import block
from lingvo_moe.testing.placements import make_cost

ALL = Efficiency(matmul=1.0, network=1.0)
EXPERT = ExpertShape(model_dim=1000, hidden_dim=4000)  # 8 million weights


def test_a100_by_hand():
    cost = from_hardware(HARDWARE["a100"], 16, EXPERT)
    # Half of 312e12 FLOP/s over 6 · 8e6 a choice.
    assert cost.tokens_per_second == pytest.approx(3.25e6)
    # Half of 300 GB/s on the node of eight, half of 25 GB/s beyond.
    assert cost.bandwidth[0, 7] == 150e9
    assert cost.bandwidth[0, 8] == 12.5e9
    assert np.isinf(cost.bandwidth[3, 3])
    assert (cost.token_bytes, cost.gradient_bytes, cost.state_bytes) == (2e3, 32e6, 96e6)


def _wires(hardware):
    """Rates have no hops."""
    wires = hardware.interconnect
    hops = [f.name for f in dataclasses.fields(wires) if f.name.endswith("hop")]
    return dataclasses.replace(wires, **dict.fromkeys(hops, 0.0))


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    # On a torus ours adds the sum within a chip, and takes links as shared by its pairs.
    [("a100", 1, 1), ("cpu", 1, 1), ("tpu_v3", 3, 3.5), ("tpu_v5p", 3, 3.5)],
)
def test_all_devices_synchronise_as_the_planner_says(kind, low, high):
    hardware, devices = HARDWARE[kind], 64
    cost = from_hardware(hardware, devices, EXPERT, ALL)
    ours = cost.sync_seconds(np.ones(devices, int))[0]
    theirs = _wires(hardware).all_reduce_seconds(cost.gradient_bytes, block(devices))
    assert low * (1 - 1e-9) <= ours / theirs <= high * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["tpu_v3", "tpu_v4"])
def test_a_full_exchange_on_a_torus_takes_what_the_planner_says(kind):
    hardware, devices = HARDWARE[kind], 64
    cost = from_hardware(hardware, devices, EXPERT, ALL)
    beyond = 1 / cost.bandwidth[:, 0]
    beyond[: cost.wires.node] = 0
    # One byte a device in all, 1/64 of it from each.
    ours = beyond.sum() / devices
    assert ours == pytest.approx(_wires(hardware).all_to_all_seconds(1.0, block(devices)))


def _profile(cost, noise=0.0):
    """The measurements of a machine with these rates."""
    rng = np.random.default_rng(0)

    def measured(seconds):
        return seconds * (1 + noise * rng.uniform(-1, 1))

    compute = [
        (n, measured(cost.expert_seconds + n / cost.tokens_per_second)) for n in (64, 512, 4096)
    ]
    exchange = [(size, measured(size / cost.bandwidth[0, 1])) for size in (1e3, 1e5)]
    all_reduce = [
        (n, size, measured(cost.all_reduce_seconds(n) * size / cost.gradient_bytes))
        for n in (2, 3, 4)
        for size in (1e4, 1e6)
    ]
    return Profile(
        devices=4,
        compute=tuple(compute),
        exchange=tuple(exchange),
        all_reduce=tuple(all_reduce),
    )


SIZES = {"token_bytes": 1.0, "gradient_bytes": 8.0, "state_bytes": 80.0}


def test_a_profile_finds_the_rates_again():
    true = make_cost(node=4, expert_seconds=0.1, crowding=0.125)
    fitted, errors = _profile(true).fit(**SIZES)
    for field in dataclasses.fields(true):
        if field.name != "wires":
            np.testing.assert_allclose(getattr(fitted, field.name), getattr(true, field.name))
    for name in ("node", "local", "crowding"):
        np.testing.assert_allclose(getattr(fitted.wires, name), getattr(true.wires, name))
    assert max(errors.values()) < 1e-9
    fitted, errors = _profile(make_cost(node=4), noise=0.1).fit(**SIZES)
    assert fitted.tokens_per_second == pytest.approx(100, rel=0.1)
    assert fitted.wires.local == pytest.approx(4, rel=0.2)
    assert 0.01 < max(errors.values()) < 0.25


def test_what_was_measured_once_is_taken_as_proportional():
    # Tokens alone, no fixed time; two devices alone, nothing for each further one.
    profile = Profile(
        devices=4,
        compute=((50, 2.0),),
        exchange=((1.0, 1.0),),
        all_reduce=((2, 100.0, 6.0),),
    )
    fitted, _ = profile.fit(**SIZES)
    assert (fitted.expert_seconds, fitted.wires.crowding) == (0, 0)
    assert fitted.tokens_per_second == pytest.approx(25)
    # 2 · 1/2 of 100 bytes.
    assert fitted.wires.local == pytest.approx(100 / 6)
