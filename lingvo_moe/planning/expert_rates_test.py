"""Tests of the cost model from hardware: rates by hand, and as the planner's collectives."""

import dataclasses

import numpy as np
import pytest

from lingvo_moe.hardware.chips import HARDWARE
from lingvo_moe.hardware.links import Interconnect, block
from lingvo_moe.planning.expert_rates import ExpertShape, cost_model

EXPERT = ExpertShape(model_dim=1000, hidden_dim=4000)  # 8 million weights


def test_a100_by_hand():
    cost = cost_model(HARDWARE["a100"], 16, EXPERT)
    # Half of 312e12 FLOP/s over 6 · 8e6 a choice.
    assert cost.tokens_per_second == pytest.approx(3.25e6)
    # Half of 300 GB/s on the node of eight, half of 25 GB/s beyond.
    assert cost.bandwidth[0, 7] == 150e9
    assert cost.bandwidth[0, 8] == 12.5e9
    assert np.isinf(cost.bandwidth[3, 3])
    assert (cost.token_bytes, cost.gradient_bytes, cost.state_bytes) == (2e3, 16e6, 96e6)


def _wires(hardware):
    """Rates have no hops."""
    wires = hardware.interconnect
    hops = [f.name for f in dataclasses.fields(wires) if f.name.endswith("hop")]
    return dataclasses.replace(wires, **dict.fromkeys(hops, 0.0))


@pytest.mark.parametrize("kind", ["a100", "cpu", "tpu_v3", "tpu_v5p"])
def test_all_devices_synchronise_as_the_planner_says(kind):
    hardware, devices = HARDWARE[kind], 64
    cost = cost_model(hardware, devices, EXPERT, network_efficiency=1.0)
    ours = cost.sync_seconds(np.ones(devices, int))[0]
    theirs = _wires(hardware).all_reduce_seconds(cost.gradient_bytes, block(devices))
    # On a torus ours adds the sum within a chip, and takes links as shared by its pairs.
    assert theirs <= ours * 1.001 < 5 * theirs


@pytest.mark.parametrize("kind", ["tpu_v3", "tpu_v4"])
def test_a_full_exchange_on_a_torus_takes_what_the_planner_says(kind):
    hardware, devices = HARDWARE[kind], 64
    cost = cost_model(hardware, devices, EXPERT, network_efficiency=1.0)
    beyond = 1 / cost.bandwidth[:, 0]
    beyond[cost.nodes == cost.nodes[0]] = 0
    # One byte a device in all, 1/64 of it from each.
    ours = beyond.sum() / devices
    assert ours == pytest.approx(_wires(hardware).all_to_all_seconds(1.0, block(devices)))


def test_one_device():
    assert cost_model(HARDWARE["tpu_v4"], 1, EXPERT).bandwidth.shape == (1, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Strings(Interconnect):
    def all_reduce_seconds(self, size, group):
        return 1.0

    def all_to_all_seconds(self, size, group):
        return 1.0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ExpertShape(model_dim=0), "model_dim, hidden_dim and state_bytes must be at"),
        (
            lambda: cost_model(HARDWARE["a100"], 8, ExpertShape(dtype="int4")),
            "No speed is known in 'int4'; choose one of float32, bfloat16",
        ),
        (
            lambda: cost_model(HARDWARE["a100"], 8, EXPERT, network_efficiency=0.0),
            r"network_efficiency must be in \(0, 1\], got 0.0",
        ),
        (
            lambda: cost_model(
                dataclasses.replace(HARDWARE["a100"], interconnect=_Strings()), 8, EXPERT
            ),
            "No bandwidth of pairs of devices is known for _Strings",
        ),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=text):
        make()
