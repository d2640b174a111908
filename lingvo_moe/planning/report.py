"""Plans as text, as JSON, and as a page with pictures."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lingvo_moe.hardware.chips import lookup
from lingvo_moe.planning.plan import Plan
from lingvo_moe.planning.plots import draw_sweep
from lingvo_moe.planning.tpu_compile import Compiled
from lingvo_moe.reporting.page import document, escape, image
from lingvo_moe.reporting.table import Table

GB, MIB = 1e9, 2**20


def format_plan(plan: Plan) -> str:
    """One plan as a table for the terminal."""
    estimate, costs, device = plan.estimate, plan.estimate.costs, lookup(plan.hardware)
    lines = [
        f"{plan.model} on {costs.devices} x {plan.hardware} ({device.description}), "
        f"mesh {plan.mesh}",
        f"  parameters            {costs.parameters:,}",
        f"  FLOPs of a step       {costs.flops * costs.devices:.3g}, {costs.flops:.3g} a device",
        f"  step                  {estimate.step_seconds:.3g} s, {1 / estimate.step_seconds:.2f} a "
        f"second, {estimate.flops_share:.0%} of peak FLOP/s",
        f"  target tokens         {costs.tokens:,} a step, {estimate.tokens_per_second:,.0f} a "
        f"second",
        f"  10^12 tokens          {estimate.days:.1f} days, {estimate.device_years:.1f} "
        f"device-years",
        "",
        "memory of a device, GB",
    ]
    memory = dataclasses.asdict(costs.memory) | {"total": costs.memory.total}
    lines += [f"  {kind:<20}{size / GB:>8.2f}" for kind, size in memory.items()]
    fits = "fits" if costs.memory.total <= device.memory else "DOES NOT FIT"
    lines += [f"  {'there is':<20}{device.memory / GB:>8.2f}  {fits}", "", "time of a step, ms"]
    lines += [
        f"  {part:<20}{1e3 * seconds:>8.1f}  {seconds / estimate.step_seconds:>4.0%}"
        for part, seconds in estimate.seconds.items()
    ]
    if costs.transfers:
        lines += ["", "communication of a device in a step"]
    lines += [
        f"  {t.part:<16}{t.count:>4} x {t.kind:<12} over {costs.mesh.size(t.axes):>5} "
        f"{t.bytes / MIB:>10.1f} MiB"
        for t in costs.transfers
    ]
    return "\n".join(lines + (_compiled_lines(plan.compiled) if plan.compiled else []))


def _compiled_lines(compiled: Compiled) -> list[str]:
    optimal = compiled.optimal_seconds
    lines = [
        "",
        f"the TPU compiler, for {compiled.topology}: {compiled.devices} x {compiled.device_kind}",
        f"  lowered in            {compiled.lower_seconds:.0f} s",
        f"  compiled in           {compiled.compile_seconds:.0f} s "
        f"({compiled.compile_cpu_seconds:.0f} s of processor time, "
        f"{compiled.host_bytes / GB:.1f} GB of this machine)",
        f"  FLOPs, loops once     {compiled.flops:.3g}",
        f"  its own estimate      {'none' if optimal is None else f'{optimal:.3g} s'}",
        "  memory of a device, GB",
    ]
    sizes = {
        "arguments": compiled.argument_bytes,
        "temporaries": compiled.temp_bytes,
        "outputs, not in place": compiled.output_bytes - compiled.alias_bytes,
        "program": compiled.code_bytes,
        "total": compiled.total_bytes,
    }
    lines += [f"    {name:<22}{size / GB:>8.3f}" for name, size in sizes.items()]
    if not compiled.read:
        return [*lines, "  collectives: unknown, because this JAX cannot read the program"]
    lines.append("  collectives: number, kind, MiB a device, size of groups, operation")
    return lines + [
        f"    {row['times']:>3} {row['kind']:<18}{row['bytes'] / MIB:>9.3f} {row['group']:>5}  "
        f"{row['cause']}"
        for row in collective_rows(compiled)
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


def to_json(plan: Plan) -> dict[str, Any]:
    """All numbers of a plan, in SI units and bytes."""
    estimate, costs = plan.estimate, plan.estimate.costs
    answer = {
        "model": plan.model,
        "overrides": list(plan.overrides),
        "hardware": plan.hardware,
        "mesh": plan.mesh.sizes,
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
        compiled = dataclasses.asdict(plan.compiled)
        compiled["collectives"] = collective_rows(plan.compiled)
        answer["compiled"] = compiled | {"total_bytes": plan.compiled.total_bytes}
    return answer


def format_sweep(plans: Sequence[Plan]) -> str:
    """A sweep as a table, a row for each number of devices."""
    columns: tuple[str, ...] = (
        "devices",
        "parameters",
        "step s",
        "weights+slots GB",
        "activations GB",
        "all-to-all ms",
    )
    rows: list[tuple[str, ...]] = []
    for plan in plans:
        costs, memory = plan.estimate.costs, plan.estimate.costs.memory
        rows.append(
            (
                f"{costs.devices}",
                f"{costs.parameters:.3g}",
                f"{plan.estimate.step_seconds:.3f}",
                f"{(memory.weights + memory.optimizer) / GB:.3f}",
                f"{memory.activations / GB:.3f}",
                f"{1e3 * plan.estimate.seconds.get('all_to_all', 0):.1f}",
            )
        )
    if any(plan.compiled for plan in plans):
        columns += ("compiler: arguments GB", "temporaries GB")
        rows = [row + _compiler_cells(plan) for row, plan in zip(rows, plans, strict=True)]
    return Table(columns, rows).to_text()


def _compiler_cells(plan: Plan) -> tuple[str, str]:
    compiled = plan.compiled
    if not compiled:
        return "–", "–"
    return f"{compiled.argument_bytes / GB:.3f}", f"{compiled.temp_bytes / GB:.3f}"


def write_report(plans: Sequence[Plan], directory: Path) -> None:
    """Writes plan.json and index.html, and for a sweep its curves, sweep.png.

    Args:
        plans: one, or those of a sweep.
        directory: made if it does not exist.
    """
    directory.mkdir(parents=True, exist_ok=True)
    answers = [to_json(plan) for plan in plans]
    text = json.dumps(answers if len(plans) > 1 else answers[0], indent=1)
    (directory / "plan.json").write_text(text + "\n")
    parts = []
    if len(plans) > 1:
        picture = draw_sweep(plans)
        (directory / "sweep.png").write_bytes(picture)
        parts.append(image(picture, "memory and time against the number of devices"))
    parts.append(_table(plans))
    parts += [
        f"<details><summary>{plan.estimate.costs.devices:,} devices</summary>"
        f"<pre>{escape(format_plan(plan))}</pre></details>"
        for plan in plans
    ]
    (directory / "index.html").write_text(document(f"Plan of {plans[0].model}", parts))


def _table(plans: Sequence[Plan]) -> str:
    names = ("devices", "parameters", "step, s", "AllToAll, ms", "tokens/s", "days", "device-years")
    sizes = ("weights and slots, GB", "activations, GB", "all, GB", "by the compiler, GB")
    return Table((*names, *sizes), [_cells(plan) for plan in plans]).to_html()


def _cells(plan: Plan) -> list[str]:
    estimate, costs, memory = plan.estimate, plan.estimate.costs, plan.estimate.costs.memory
    return [
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
        f"{plan.compiled.total_bytes / GB:.2f}" if plan.compiled else "–",
    ]
