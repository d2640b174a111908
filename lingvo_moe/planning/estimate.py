"""Time from counts: each part of a step against the roofline of a device (Williams et al. 2009)."""

import dataclasses

from lingvo_moe.hardware.chips import Hardware
from lingvo_moe.hardware.links import group
from lingvo_moe.planning.costs import Costs
from lingvo_moe.planning.share import PARTS, Communication, Computation
from lingvo_moe.sbp.annotations import Mesh


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """The time of a training step."""

    seconds: dict[str, float]  # part -> seconds of a step, without parts that take no time
    flops_share: float  # FLOPs of a step divided by the peak FLOPs in its time
    costs: Costs  # the counts of the step

    @property
    def step_seconds(self) -> float:
        """Seconds of a whole step."""
        return sum(self.seconds.values())


def estimate(costs: Costs, hardware: Hardware, dtype: str) -> Estimate:
    """The time of a step, part by part.

    Args:
        costs: the counts.
        hardware: the device.
        dtype: of activations.
    """
    seconds = dict.fromkeys(PARTS, 0.0)
    for work in costs.work:
        seconds[work.part] += work_seconds(work, hardware, dtype)
    for transfer in costs.transfers:
        seconds[transfer.part] += transfer_seconds(transfer, costs.mesh, hardware)
    step = sum(seconds.values())
    return Estimate(
        seconds={part: time for part, time in seconds.items() if time},
        flops_share=costs.flops / hardware.matmul[dtype] / step,
        costs=costs,
    )


def work_seconds(work: Computation, hardware: Hardware, dtype: str) -> float:
    """The longer of its compute time and its memory time."""
    return max(
        work.flops / (hardware.matmul[dtype] * hardware.efficiency.matmul),
        work.bytes / (hardware.bandwidth * hardware.efficiency.memory),
    )


def transfer_seconds(transfer: Communication, mesh: Mesh, hardware: Hardware) -> float:
    """Seconds of all its collectives, one after another."""
    # The efficiency applies to bytes alone, not to hops.
    size = transfer.bytes / transfer.count / hardware.efficiency.network
    wires = hardware.interconnect
    return transfer.count * wires.seconds(transfer.kind, size, group(mesh, transfer.axes))
