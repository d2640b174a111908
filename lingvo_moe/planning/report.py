"""Plans as text and as JSON."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from lingvo_moe.hardware.chips import find_hardware
from lingvo_moe.planning.plan import Plan
from lingvo_moe.planning.tpu_compile import Compiled
from lingvo_moe.reporting.table import Table

GB, MIB = 1e9, 2**20


def format_plan(plan: Plan) -> str:
    """One plan as tables for the terminal."""
    estimate, costs, device = plan.estimate, plan.estimate.costs, find_hardware(plan.hardware)
    seconds, memory = estimate.step_seconds, costs.memory
    title = (
        f"{plan.model} on {costs.devices} x {plan.hardware} ({device.description}), "
        f"mesh {plan.mesh}"
    )
    numbers = {
        "parameters": f"{costs.parameters:,}",
        "FLOPs per step": f"{costs.flops * costs.devices:.3g}, {costs.flops:.3g} per device",
        "step": f"{seconds:.3g} s, {1 / seconds:.2f} per second, {estimate.flops_share:.0%} of "
        "peak FLOP/s",
        "target tokens": f"{costs.tokens:,} per step, {estimate.tokens_per_second:,.0f} per second",
        "10^12 tokens": f"{estimate.days:.1f} days, {estimate.device_years:.1f} device-years",
    }
    fits = "fits" if memory.total <= device.memory else "DOES NOT FIT"
    sizes = [
        *((kind, size, "") for kind, size in dataclasses.asdict(memory).items()),
        *(("total", memory.total, ""), ("available", device.memory, fits)),
    ]
    tables = [
        Table((), list(numbers.items()), texts=2),
        Table(
            ("memory of a device", "GB", ""),
            [(kind, f"{size / GB:.2f}", note) for kind, size, note in sizes],
        ),
        Table(
            ("time of a step", "ms", ""),
            [
                (part, f"{1e3 * t:.1f}", f"{t / seconds:.0%}")
                for part, t in estimate.seconds.items()
            ],
        ),
    ]
    tables.append(_hosts_table(plan))
    if costs.transfers:
        columns = ("communication of a device", "kind", "times", "devices", "MiB")
        rows = [
            (t.part, t.kind, str(t.count), str(costs.mesh.size(t.axes)), f"{t.bytes / MIB:.1f}")
            for t in costs.transfers
        ]
        tables.append(Table(columns, rows, texts=2))
    if plan.compiled:
        tables += _compiled_tables(plan.compiled)
    warning = [f"Warning: this mesh does not fit the model: {plan.unmet}"] if plan.unmet else []
    return "\n\n".join([title, *warning, *(table.to_text() for table in tables)])


def _hosts_table(plan: Plan) -> Table:
    hosts, seconds = plan.hosts, plan.estimate.step_seconds
    note = "hidden"
    if hosts.packing > seconds:
        workers = math.ceil(hosts.packing / seconds)
        note = f"longer than a step: pass --input_workers={workers}"
    rows = [
        ("packing by one core", hosts.packing, note),
        ("copy of a save", hosts.copy, f"every {hosts.steps:,} steps"),
        ("step with both", hosts.step_seconds(seconds), ""),
    ]
    columns = ("input and saving of a host", "ms", "")
    return Table(columns, [(name, f"{1e3 * time:.1f}", note) for name, time, note in rows])


def _compiled_tables(compiled: Compiled) -> list[Table]:
    optimal = compiled.optimal_seconds
    numbers = {
        "compiled": compiled.program,
        "compiler": f"TPU's, for {compiled.topology}: {compiled.devices} x {compiled.device_kind}",
        "lowered in": f"{compiled.lower_seconds:.0f} s",
        "compiled in": f"{compiled.compile_seconds:.0f} s ({compiled.compile_cpu_seconds:.0f} s of "
        f"processor time, {compiled.host_bytes / GB:.1f} GB of this machine)",
        "FLOPs, loops once": f"{compiled.flops:.3g}",
        "its own estimate": "none" if optimal is None else f"{optimal:.3g} s",
    }
    sizes = {
        "arguments": compiled.argument_bytes,
        "temporaries": compiled.temp_bytes,
        "outputs, not in place": compiled.output_bytes - compiled.alias_bytes,
        "program": compiled.code_bytes,
        "total": compiled.total_bytes,
    }
    if not compiled.read:
        numbers["collectives"] = "unknown, this JAX cannot read the program back"
    rows = [
        (
            row["kind"],
            row["cause"],
            str(row["times"]),
            f"{row['bytes'] / MIB:.3f}",
            str(row["group"]),
        )
        for row in collective_rows(compiled)
    ]
    columns = ("collectives", "because of", "times", "MiB of a device", "in groups of")
    return [
        Table((), list(numbers.items()), texts=2),
        Table(
            ("memory of a device, compiled", "GB"),
            [(name, f"{size / GB:.3f}") for name, size in sizes.items()],
        ),
        *([Table(columns, rows, texts=2)] if compiled.read else []),
    ]


def collective_rows(compiled: Compiled) -> list[dict[str, Any]]:
    """The collectives of a program, equal ones in one row, those with most bytes first.

    Returns:
        Dicts of times, kind, bytes of one, group (devices that exchange; 0 for all) and cause, the
        operation of the model.
    """
    rows: dict[tuple, int] = {}
    for c in compiled.collectives:
        group = len(c.groups[0]) if c.groups else 0
        key = (c.kind, c.bytes, group, cause(c.op_name))
        rows[key] = rows.get(key, 0) + c.times
    named = [
        {"times": times, "kind": key[0], "bytes": key[1], "group": key[2], "cause": key[3]}
        for key, times in rows.items()
    ]
    return sorted(named, key=lambda row: -row["times"] * row["bytes"])


def cause(op_name: str) -> str:
    """The part of an op_name from the model, such as "encoder/layer_01/dispatch, gradient".

    XLA's metadata wraps it in the names of programs and joins the names of fused operations with
    semicolons: "jit(call)/call_tf/gradient_tape/layer_01/dispatch/Einsum;PartitionedCall/…".
    """
    wrappers = ("jit(", "call_", "PartitionedCall", "StatefulPartitionedCall")
    names = [n for n in op_name.split(";")[0].split("/") if n and not n.startswith(wrappers)]
    gradient = "gradient_tape" in names
    path = "/".join(name for name in names if name != "gradient_tape")
    return (path or op_name) + (", gradient" if gradient else "")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """All numbers of a plan, in SI units and bytes."""
    estimate, costs = plan.estimate, plan.estimate.costs
    answer = {
        "model": plan.model,
        "overrides": list(plan.overrides),
        "hardware": plan.hardware,
        "mesh": plan.mesh.sizes,
        "unmet": plan.unmet,
        "devices": costs.devices,
        "parameters": costs.parameters,
        "tokens_per_step": costs.tokens,
        "flops_per_device": costs.flops,
        "memory": dataclasses.asdict(costs.memory),
        "transfers": [dataclasses.asdict(transfer) for transfer in costs.transfers],
        "seconds": estimate.seconds,
        "step_seconds": estimate.step_seconds,
        "hosts": dataclasses.asdict(plan.hosts),
        "step_seconds_with_hosts": plan.hosts.step_seconds(estimate.step_seconds),
        "flops_share": estimate.flops_share,
        "tokens_per_second": estimate.tokens_per_second,
        "days": estimate.days,
        "device_years": estimate.device_years,
    }
    if plan.compiled:
        compiled = dataclasses.asdict(plan.compiled)
        compiled["collectives"] = collective_rows(plan.compiled)
        answer["compiled"] = compiled | {"total_bytes": plan.compiled.total_bytes}
    return answer


def sweep_table(plans: Sequence[Plan]) -> Table:
    """A row for each plan, by its number of devices."""
    columns = ["devices", "parameters", "step, s", "AllToAll, ms", "tokens/s", "days"]
    columns += ["device-years", "weights and slots, GB", "activations, GB", "all, GB"]
    rows = []
    for plan in plans:
        estimate, costs, memory = plan.estimate, plan.estimate.costs, plan.estimate.costs.memory
        rows.append(
            [
                f"{costs.devices}",
                f"{costs.parameters:.3g}",
                f"{estimate.step_seconds:.3f}",
                f"{1e3 * estimate.seconds.get('all_to_all', 0.0):.1f}",
                f"{estimate.tokens_per_second:,.0f}",
                f"{estimate.days:.1f}",
                f"{estimate.device_years:.1f}",
                f"{(memory.weights + memory.optimizer) / GB:.3f}",
                f"{memory.activations / GB:.3f}",
                f"{memory.total / GB:.2f}",
            ]
        )
    if any(plan.compiled for plan in plans):
        columns += ["compiler: arguments, GB", "temporaries, GB", "all, GB"]
        for row, plan in zip(rows, plans, strict=True):
            one = plan.compiled
            sizes = (one.argument_bytes, one.temp_bytes, one.total_bytes) if one else ()
            row += [f"{size / GB:.3f}" for size in sizes] or ["–"] * 3
    return Table(columns, rows)
