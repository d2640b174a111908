"""Time from counts: each part of a step against the roofline of a device (Williams et al. 2009)."""

import dataclasses

from lingvo_moe.planning.costs import PARTS, Costs, Transfer
from lingvo_moe.planning.hardware import Hardware

YEAR = 365.25 * 86400
TOKENS = 10**12  # what each of GShard's models was trained on


@dataclasses.dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Which share of its peak each resource reaches; one set for all models.

    Attributes:
        matmul: of the FLOP/s of matrix products, in parts that they bound.
        memory: of the memory's bandwidth, in parts that it bounds.
        network: of the links' bandwidth; collectives here overlap with nothing.
    """

    matmul: float = 0.7
    memory: float = 0.4
    network: float = 0.15

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if not 0 < getattr(self, field.name) <= 1:
                raise ValueError(
                    f"{field.name} must be in (0, 1], got {getattr(self, field.name)}."
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a training step takes.

    Attributes:
        seconds: part -> seconds of a step; parts that take none are left out.
        flops_share: FLOPs of a step over what the peak could do in its time.
        costs: what it was made from.
    """

    seconds: dict[str, float]
    flops_share: float
    costs: Costs

    @property
    def step_seconds(self) -> float:
        """Of a whole step."""
        return sum(self.seconds.values())

    @property
    def tokens_per_second(self) -> float:
        """Target tokens, all devices together."""
        return self.costs.tokens / self.step_seconds

    @property
    def days(self) -> float:
        """To TOKENS target tokens."""
        return TOKENS / self.tokens_per_second / 86400

    @property
    def device_years(self) -> float:
        """To TOKENS target tokens, of all devices together."""
        return TOKENS / self.tokens_per_second / YEAR * self.costs.devices


def estimate(
    costs: Costs, hardware: Hardware, dtype: str, efficiency: Efficiency | None = None
) -> Estimate:
    """The time of a step, part by part.

    Args:
        costs: the counts.
        hardware: the device.
        dtype: of activations.
        efficiency: see Efficiency.
    """
    efficiency = efficiency or Efficiency()
    peak = hardware.matmul[dtype]
    seconds = dict.fromkeys(PARTS, 0.0)
    for work in costs.work:
        seconds[work.part] += max(
            work.flops / (peak * efficiency.matmul),
            work.bytes / (hardware.bandwidth * efficiency.memory),
        )
    for transfer in costs.transfers:
        seconds[transfer.part] += transfer_seconds(transfer, hardware) / efficiency.network
    step = sum(seconds.values())
    return Estimate(
        seconds={part: time for part, time in seconds.items() if time},
        flops_share=costs.flops / peak / step,
        costs=costs,
    )


def transfer_seconds(transfer: Transfer, hardware: Hardware) -> float:
    """Of a transfer at the wires' full speed."""
    wires = hardware.interconnect
    seconds = {
        "all-reduce": wires.all_reduce_seconds,
        "all-to-all": wires.all_to_all_seconds,
        "all-gather": wires.all_gather_seconds,
    }
    return seconds[transfer.kind](transfer.bytes, transfer.devices)
