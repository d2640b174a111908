"""A plan: the cost of one model on one mesh of one hardware."""

import dataclasses
from collections.abc import Callable, Sequence

from lingvo_moe.hardware.chips import find_hardware
from lingvo_moe.planning.costs import count_costs
from lingvo_moe.planning.estimate import Estimate, estimate
from lingvo_moe.planning.search import Space
from lingvo_moe.planning.tpu_compile import Compiled, compile_step
from lingvo_moe.sharding.annotations import Mesh
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.recipe import registered


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The cost of a model on D devices.

    Attributes:
        model: the registered name.
        overrides: as of --set.
        hardware: a key of HARDWARE.
        mesh: the devices.
        estimate: of the analytic model.
        unmet: why the model cannot be trained on this mesh as it is; "" if it can.
        compiled: the TPU compiler's numbers; None without compilation.
    """

    model: str
    overrides: tuple[str, ...]
    hardware: str
    mesh: Mesh
    estimate: Estimate
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
    space, sharding = Space(params, device), params.sharding
    rules, stored = sharding.compute_rules(mesh), sharding.storage_rules(mesh)
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
        unmet=space.unmet(mesh) or space.uneven(mesh, rules, stored),
        compiled=compiled,
    )
