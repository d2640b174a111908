"""A plan: the cost of one model on one mesh of one hardware, in numbers and as text."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from lingvo_moe.hardware.chips import find_hardware
from lingvo_moe.planning.costs import count_costs, estimate
from lingvo_moe.planning.search import Space
from lingvo_moe.planning.tpu_compile import compile_step
from lingvo_moe.reporting.table import Table
from lingvo_moe.sbp.types import Mesh
from lingvo_moe.tasks.recipe import registered

GB, MIB = 1e9, 2**20
YEAR = 365.25 * 86400
TOKENS = 10**12  # GShard trained each of its models on this number of tokens


def make_plan(
    model: str,
    overrides: Sequence[str],
    hardware_name: str,
    mesh: Mesh | None = None,
    topology: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
    sentences: int | None = None,
) -> dict[str, Any]:
    """Plans a registered model with `--set` texts.

    Args:
        hardware_name: a key of HARDWARE.
        mesh: the devices; by default one device per expert, as in the paper, or a single device.
        topology, progress, sentences: as for `compile_step`; None not to compile.

    Returns:
        All numbers of the plan for JSON, in SI units and bytes. `unmet` says why the model cannot
        be trained on this mesh as it is, "" if it can; `compiled` is there with a topology.

    Raises ValueError: an unknown model or hardware, or as `compile_step` and `type_of`.
    """
    device = find_hardware(hardware_name)
    params = registered(model, overrides)
    moe, dtype = params.model.moe, params.activation_dtype
    mesh = mesh or (Mesh(("expert",), (moe.num_experts,)) if moe else Mesh(("data",), (1,)))
    costs = count_costs(params, mesh, device.wire_bytes[dtype])
    space, sharding = Space(params, device), params.sharding
    rules, stored = sharding.compute_rules(mesh), sharding.storage_rules(mesh)
    found = estimate(costs, device, dtype)
    tokens_per_second = costs.tokens / found.step_seconds
    seconds = TOKENS / tokens_per_second
    answer = {
        "model": model,
        "overrides": list(overrides),
        "hardware": hardware_name,
        "mesh": mesh.sizes,
        "unmet": space.unmet(mesh) or space.uneven(mesh, rules, stored),
        "devices": costs.devices,
        "parameters": costs.parameters,
        "tokens_per_step": costs.tokens,
        "flops_per_device": costs.flops,
        "memory": dataclasses.asdict(costs.memory),
        "transfers": [
            dataclasses.asdict(transfer) | {"devices": mesh.size(transfer.axes)}
            for transfer in costs.transfers
        ],
        "seconds": found.seconds,
        "step_seconds": found.step_seconds,
        "flops_share": found.flops_share,
        "tokens_per_second": tokens_per_second,
        "days": seconds / 86400,
        "device_years": seconds / YEAR * costs.devices,
    }
    if topology:
        progress(f"Compiling {model} for {topology}: minutes.")
        answer["compiled"] = compile_step(model, overrides, topology, mesh, progress, sentences)
    return answer


def format_plan(plan: dict[str, Any]) -> str:
    """The result of make_plan as tables for the terminal."""
    device, step, memory = find_hardware(plan["hardware"]), plan["step_seconds"], plan["memory"]
    devices, flops, total = plan["devices"], plan["flops_per_device"], sum(memory.values())
    mesh = Mesh(tuple(plan["mesh"]), tuple(plan["mesh"].values()))
    numbers = {
        "parameters": f"{plan['parameters']:,}",
        "FLOPs per step": f"{flops * devices:.3g}, {flops:.3g} per device",
        "step": f"{step:.3g} s, {1 / step:.2f} per second, {plan['flops_share']:.0%} of peak "
        f"FLOP/s",
        "target tokens": f"{plan['tokens_per_step']:,} per step, {plan['tokens_per_second']:,.0f} "
        f"per second",
        "10^12 tokens": f"{plan['days']:.1f} days, {plan['device_years']:.1f} device-years",
    }
    sizes = memory | {"total": total, "available": device.memory}
    fits = "fits" if total <= device.memory else "DOES NOT FIT"
    parts = [(part, f"{1e3 * t:.1f}", f"{t / step:.0%}") for part, t in plan["seconds"].items()]
    sent = [
        (t["part"], t["kind"], str(t["count"]), str(t["devices"]), f"{t['bytes'] / MIB:.1f}")
        for t in plan["transfers"]
    ]
    columns = ("communication of a device", "kind", "times", "devices", "MiB")
    tables = [
        Table((), list(numbers.items()), texts=2),
        Table(
            ("memory of a device", "GB", ""),
            [(n, f"{s / GB:.2f}", fits if n == "available" else "") for n, s in sizes.items()],
        ),
        Table(("time of a step", "ms", ""), parts),
        *([Table(columns, sent, texts=2)] if sent else []),
        *(_compiled_tables(plan["compiled"]) if "compiled" in plan else []),
    ]
    title = f"{plan['model']} on {devices} x {plan['hardware']} ({device.description}), mesh {mesh}"
    warning = [f"Warning: this mesh does not fit the model: {plan['unmet']}"] * bool(plan["unmet"])
    return "\n\n".join([title, *warning, *(table.to_text() for table in tables)])


def _compiled_tables(compiled: dict[str, Any]) -> list[Table]:
    numbers = {
        "compiled": compiled["program"],
        "compiler": f"TPU's, for {compiled['topology']}: {compiled['devices']} x "
        f"{compiled['device_kind']}",
        "compiled in": f"{compiled['compile_cpu_seconds']:.0f} s of processor time, "
        f"{compiled['host_bytes'] / GB:.1f} GB of this machine",
        "FLOPs, loops once": f"{compiled['flops']:.3g}",
    }
    sizes = {
        "arguments": compiled["argument_bytes"],
        "temporaries": compiled["temp_bytes"],
        "outputs, not in place": compiled["output_bytes"] - compiled["alias_bytes"],
        "program": compiled["code_bytes"],
        "total": compiled["total_bytes"],
    }
    if compiled["collectives"] is None:
        numbers["collectives"] = "unknown, this JAX cannot read the program back"
    rows = [
        (r["kind"], r["cause"], str(r["times"]), f"{r['bytes'] / MIB:.3f}", str(r["group"]))
        for r in compiled["collectives"] or ()
    ]
    columns = ("collectives", "because of", "times", "MiB of a device", "in groups of")
    return [
        Table((), list(numbers.items()), texts=2),
        Table(
            ("memory of a device, compiled", "GB"),
            [(name, f"{size / GB:.3f}") for name, size in sizes.items()],
        ),
        *([Table(columns, rows, texts=2)] if rows else []),
    ]
