"""The cost of one training step for one device: FLOPs, memory traffic, memory, collectives, time.

It is computed from shapes alone (GShard section 2.4 with all constants); blocks.py counts. The time
is that of each part against the roofline of a device (Williams et al. 2009).
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping

from lingvo_moe.hardware.chips import Hardware
from lingvo_moe.hardware.links import group
from lingvo_moe.planning.blocks import GROUPS, ModelBlocks
from lingvo_moe.planning.flow import PARTS, BlockCost, Communication, Computation
from lingvo_moe.sbp.types import Mesh
from lingvo_moe.tasks.params import TranslationParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device by kind. Activations are an estimate of the peak; gradients are counted
    in full, although a compiler may free each as soon as it is used."""

    weights: float
    optimizer: float
    gradients: float
    activations: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.weights + self.optimizer + self.gradients + self.activations


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """All counts, per device and step, except parameters and tokens."""

    parameters: int
    tokens: int  # target tokens of a batch, the measure of 10^12
    mesh: Mesh
    work: tuple[Computation, ...]
    transfers: tuple[Communication, ...]
    memory: Memory

    @property
    def devices(self) -> int:
        """The number of devices."""
        return math.prod(self.mesh.shape)

    @property
    def flops(self) -> float:
        """FLOPs of matrix products on one device in one step."""
        return sum(w.flops for w in self.work)

    @property
    def sent(self) -> Mapping[str, float]:
        """Kind of collective -> bytes of a device in a step."""
        total: dict[str, float] = {}
        for transfer in self.transfers:
            total[transfer.kind] = total.get(transfer.kind, 0.0) + transfer.bytes
        return total


def count_costs(params: TranslationParams, mesh: Mesh, wire_bytes: int) -> Costs:
    """Counts a training step of a model with its sharding rules; wire_bytes is of an element that
    is sent between, or kept for, matrix products. Raises ValueError: as `type_of`."""
    blocks, sharding = ModelBlocks(params, wire_bytes), params.sharding
    rules, stored = sharding.compute_rules(mesh), sharding.storage_rules(mesh)
    remat = params.model.remat or params.model.scan  # a scan rematerialises its layers
    shares = [
        blocks.share(group, mesh, rules, stored, remat, sharding.late_sums) for group in GROUPS
    ]
    return Costs(
        parameters=blocks.parameters,
        tokens=params.input.batch_size * params.input.target_length,
        mesh=mesh,
        work=tuple(work for share in shares for work in share.work),
        transfers=_merged(transfer for share in shares for transfer in share.transfers),
        memory=memory_of(blocks, shares, remat),
    )


def memory_of(blocks: ModelBlocks, shares: Iterable[BlockCost], remat: bool) -> Memory:
    """The memory of a device from all shares of a model, added up."""
    shares = list(shares)
    kept = [sum(by_layer) for by_layer in zip(*(share.kept for share in shares), strict=True)]
    inputs = sum(share.inputs for share in shares)
    logits = sum(share.logits for share in shares)
    # With rematerialisation the inputs of all layers are kept, and the tensors of one layer with
    # their gradients.
    everything = (
        inputs + max(2 * max(kept, default=0.0), logits)
        if remat
        else inputs
        + math.fsum(kind.count * k for kind, k in zip(blocks.kinds, kept, strict=True))
        + logits
    )
    return Memory(
        weights=sum(share.weights for share in shares),
        optimizer=sum(share.optimizer for share in shares),
        gradients=sum(share.gradients for share in shares),
        activations=everything / blocks.micro_batches + sum(share.in_use for share in shares),
    )


def _merged(transfers: Iterable[Communication]) -> tuple[Communication, ...]:
    """The transfers, with those of equal part, kind and axes merged."""
    found: dict[tuple, Communication] = {}
    for one in transfers:
        key = (one.part, one.kind, one.axes)
        if key in found:
            one = dataclasses.replace(
                one, bytes=one.bytes + found[key].bytes, count=one.count + found[key].count
            )
        found[key] = one
    return tuple(found.values())


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
    """The time of a step, part by part; dtype is that of activations."""
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
