import dataclasses

import pytest

from lingvo_moe.hardware.chips import Efficiency, Hardware
from lingvo_moe.hardware.links import Torus
from lingvo_moe.planning.costs import Costs, Memory, estimate
from lingvo_moe.planning.flow import Communication, Computation
from lingvo_moe.sbp.types import Mesh

DEVICE = Hardware(
    description="round numbers",
    matmul={"float32": 100.0},
    memory=1.0,
    bandwidth=10.0,
    interconnect=Torus(dims=2, link=1.0, hop=0.25),
    efficiency=Efficiency(matmul=1.0, memory=1.0, network=1.0),
)
COSTS = Costs(
    parameters=1,
    tokens=1000,
    mesh=Mesh(("data",), (16,)),
    work=(
        Computation(part="attention", flops=200.0, bytes=10.0),  # products bound it: 2 s, not 1 s
        Computation(part="attention", flops=100.0, bytes=50.0),  # memory bounds it: 5 s, not 1 s
        Computation(part="optimizer", bytes=20.0),  # 2 s
    ),
    transfers=(
        # Two of 16 chips each: 2 · 2 · 15/16 / (2·2·1), and 2·2·(4-1) hops of 0.25 s.
        Communication(part="gradients", kind="all-reduce", bytes=4.0, axes=("data",), count=2),
    ),
    memory=Memory(weights=1.0, optimizer=2.0, gradients=3.0, activations=4.0),
)


def test_roofline_by_hand():
    result = estimate(COSTS, DEVICE, "float32")
    assert result.seconds == pytest.approx(
        {"attention": 7.0, "optimizer": 2.0, "gradients": 2 * (0.9375 + 3)}
    )
    assert result.step_seconds == pytest.approx(16.875)
    assert result.flops_share == pytest.approx(300 / 100 / 16.875)
    assert COSTS.memory.total == 10.0


def test_efficiency_divides():
    efficiency = Efficiency(matmul=0.5, memory=0.1, network=0.25)
    device = dataclasses.replace(DEVICE, efficiency=efficiency)
    half = estimate(COSTS, device, "float32")
    # 200 FLOP at 50/s against 10 bytes at 1/s; 50 bytes at 1/s; 20 bytes at 1/s. Hops are
    # what they are.
    assert half.seconds == pytest.approx(
        {"attention": 60.0, "optimizer": 20.0, "gradients": 2 * (3.75 + 3)}
    )
