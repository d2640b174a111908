"""A plan: one model on one mesh of one hardware; a sweep: the same at constant work per device."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from lingvo_moe.hardware.chips import find_hardware
from lingvo_moe.planning.blocks import GROUPS
from lingvo_moe.planning.costs import count_costs
from lingvo_moe.planning.estimate import Estimate, HostTimes, estimate, host_times
from lingvo_moe.planning.search import Space
from lingvo_moe.planning.tpu_compile import Compiled, compile_step
from lingvo_moe.sharding.annotations import Mesh, assignment
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.recipe import registered

SWEEP = tuple(2**i for i in range(3, 12))
# Topologies of libtpu, by generation and number of devices; a v3 chip has two devices.
_TOPOLOGIES = {
    "v3": {8: "2x2", 32: "4x4", 128: "8x8", 512: "16x16", 2048: "32x32"},
    "v4": {8: "2x2x2", 64: "4x4x4", 512: "8x8x8", 2048: "8x16x16"},
    "v5p": {8: "2x2x2", 64: "4x4x4", 512: "8x8x8", 2048: "8x16x16"},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The cost of a model on D devices.

    Attributes:
        model: the registered name.
        overrides: as of --set.
        hardware: a key of HARDWARE.
        mesh: the devices.
        estimate: of the analytic model.
        hosts: the times of input and saving.
        unmet: why the model cannot be trained on this mesh as it is; "" if it can.
        compiled: the TPU compiler's numbers; None without compilation.
    """

    model: str
    overrides: tuple[str, ...]
    hardware: str
    mesh: Mesh
    estimate: Estimate
    hosts: HostTimes
    unmet: str = ""
    compiled: Compiled | None = None


def default_mesh(params: TranslationParams) -> Mesh:
    """One device per expert, as in the paper; one device for a dense model."""
    moe = params.model.moe
    return Mesh(("expert",), (moe.num_experts,)) if moe else Mesh(("data",), (1,))


def make_plan(
    model: str,
    overrides: Sequence[str],
    hardware_name: str,
    mesh: Mesh | None = None,
    topology: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
    sentences: int | None = None,
) -> Plan:
    """Plans one model.

    Args:
        model: a registered name.
        overrides: as of --set.
        hardware_name: a key of HARDWARE.
        mesh: the devices; None for `default_mesh`.
        topology: to compile for, such as "v3:8x8"; None not to compile.
        progress: takes lines of progress.
        sentences: compile beam search for a batch of this size; None for the training step.

    Raises:
        ValueError: an unknown model, hardware or topology, or a mesh that does not fit the model.
    """
    device = find_hardware(hardware_name)
    params = registered(model, overrides)
    mesh = mesh or default_mesh(params)
    costs = count_costs(params, mesh, device.wire_bytes[params.activation_dtype])
    compiled = None
    if topology:
        progress(f"Compiling {model} for {topology}: minutes.")
        compiled = compile_step(model, list(overrides), topology, mesh, progress, sentences)
    return Plan(
        model=model,
        overrides=tuple(overrides),
        hardware=hardware_name,
        mesh=mesh,
        estimate=estimate(costs, device, params.activation_dtype),
        hosts=host_times(costs, device, params.train.checkpoint_every),
        unmet=_unmet(Space(params, device), mesh),
        compiled=compiled,
    )


def _unmet(space: Space, mesh: Mesh) -> str:
    """Why the model cannot be trained on a mesh with its sharding params; "" if it can."""
    sharding = space.params.sharding
    if reason := space.unmet(mesh):
        return reason
    heads, pieces = space.heads, mesh.size(sharding.compute_rules(mesh).get("N", ()))
    if heads % pieces:
        return (
            f"the numbers of heads must be multiples of {pieces}, because the mesh splits them "
            f"into so many pieces."
        )
    stored = sharding.storage_rules(mesh)
    for group in GROUPS:
        for dims, shape in (*space.blocks.weights[group], *space.blocks.slots[group]):
            axes = assignment(dims, shape, mesh, stored)
            try:
                mesh.piece_shape(shape, axes, dims, f"a weight of shape {shape}")
            except ValueError as error:
                return str(error)
    return ""


def sweep(
    model: str,
    overrides: Sequence[str],
    hardware_name: str,
    generation: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Plan]:
    """Weak scaling as in the paper's Figures 7 to 9: D devices, D experts, and as many rows a
    device as the registered model has.

    Args:
        generation: "v3", "v4" or "v5p" to compile too, at sizes that libtpu knows; None not to
            compile.
        model, overrides, hardware_name, progress: as of `make_plan`.

    Raises:
        ValueError: a model without experts, an unknown generation, or as `make_plan`.
    """
    params = registered(model, overrides)
    if params.model.moe is None:
        raise ValueError(f"--sweep scales experts with devices, and {model!r} has none.")
    if generation is not None and generation not in _TOPOLOGIES:
        choices = ", ".join(_TOPOLOGIES)
        raise ValueError(f"--sweep compiles for {choices}; got --compile={generation!r}.")
    rows = math.ceil(params.input.batch_size / params.model.moe.num_experts)
    plans = []
    for devices in SWEEP:
        shape = [
            f"model.moe.num_experts={devices}",
            "model.moe.decoder_num_experts=None",
            f"model.moe.num_groups={devices}",
            f"input.batch_size={rows * devices}",
        ]
        torus = _TOPOLOGIES.get(generation or "", {}).get(devices)
        topology = f"{generation}:{torus}" if torus else None
        mesh = Mesh(("expert",), (devices,))
        plan = make_plan(model, [*overrides, *shape], hardware_name, mesh, topology, progress)
        if plan.unmet:
            raise ValueError(
                f"--sweep: {rows} rows a device on {devices} devices do not fit: {plan.unmet}"
            )
        plans.append(plan)
    return plans
