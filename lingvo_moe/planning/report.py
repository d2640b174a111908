"""Plans as text and as JSON."""

import collections
import dataclasses
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
    sizes = dataclasses.asdict(memory) | {"total": memory.total, "available": device.memory}
    fits = "fits" if memory.total <= device.memory else "DOES NOT FIT"
    parts = [(part, f"{1e3 * t:.1f}", f"{t / seconds:.0%}") for part, t in estimate.seconds.items()]
    sent = [
        (t.part, t.kind, str(t.count), str(costs.mesh.size(t.axes)), f"{t.bytes / MIB:.1f}")
        for t in costs.transfers
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
        *(_compiled_tables(plan.compiled) if plan.compiled else []),
    ]
    warning = [f"Warning: this mesh does not fit the model: {plan.unmet}"] if plan.unmet else []
    return "\n\n".join([title, *warning, *(table.to_text() for table in tables)])


def _compiled_tables(compiled: Compiled) -> list[Table]:
    numbers = {
        "compiled": compiled.program,
        "compiler": f"TPU's, for {compiled.topology}: {compiled.devices} x {compiled.device_kind}",
        "compiled in": f"{compiled.compile_cpu_seconds:.0f} s of processor time, "
        f"{compiled.host_bytes / GB:.1f} GB of this machine",
        "FLOPs, loops once": f"{compiled.flops:.3g}",
    }
    sizes = {
        "arguments": compiled.argument_bytes,
        "temporaries": compiled.temp_bytes,
        "outputs, not in place": compiled.output_bytes - compiled.alias_bytes,
        "program": compiled.code_bytes,
        "total": compiled.total_bytes,
    }
    if compiled.collectives is None:
        numbers["collectives"] = "unknown, this JAX cannot read the program back"
    rows = [
        (r["kind"], r["cause"], str(r["times"]), f"{r['bytes'] / MIB:.3f}", str(r["group"]))
        for r in collective_rows(compiled)
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


def collective_rows(compiled: Compiled) -> list[dict[str, Any]]:
    """The collectives of a program, equal ones in one row, those with most bytes first.

    Returns:
        Dicts of times, kind, bytes of one, group (devices that exchange; 0 for all) and cause, the
        operation of the model.
    """
    rows: collections.Counter = collections.Counter()
    for c in compiled.collectives or ():
        rows[c.kind, c.bytes, len(c.groups[0]) if c.groups else 0, cause(c.op_name)] += c.times
    names = ("kind", "bytes", "group", "cause")
    named = [{"times": n} | dict(zip(names, key, strict=True)) for key, n in rows.items()]
    return sorted(named, key=lambda row: -row["times"] * row["bytes"])


def cause(op_name: str) -> str:
    """The part of an op_name from the model, such as "encoder/layer_01/dispatch, gradient".

    XLA's metadata wraps it in the names of programs and joins the names of fused operations with
    semicolons: "jit(call)/call_tf/gradient_tape/layer_01/dispatch/Einsum;PartitionedCall/…".
    """
    wrappers = ("jit(", "call_", "PartitionedCall", "StatefulPartitionedCall")
    names = [n for n in op_name.split(";")[0].split("/") if n and not n.startswith(wrappers)]
    path = "/".join(name for name in names if name != "gradient_tape")
    return (path or op_name) + (", gradient" if "gradient_tape" in names else "")


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
        "flops_share": estimate.flops_share,
        "tokens_per_second": estimate.tokens_per_second,
        "days": estimate.days,
        "device_years": estimate.device_years,
    }
    if plan.compiled:
        collectives = {"collectives": collective_rows(plan.compiled)}
        total = {"total_bytes": plan.compiled.total_bytes}
        answer["compiled"] = dataclasses.asdict(plan.compiled) | collectives | total
    return answer
