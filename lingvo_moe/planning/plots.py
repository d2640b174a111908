"""The curves of the paper's Figures 7 to 9 for a sweep: memory, time by part, weak scaling."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lingvo_moe.hardware.chips import find_hardware
from lingvo_moe.planning.plan import Plan
from lingvo_moe.planning.share import PARTS
from lingvo_moe.reporting.figure import legible, to_png

_COLORS = (
    *("#1f5fa8", "#5a93cf", "#3b8544", "#c4562d", "#e0a03a"),
    *("#7a4fa3", "#8a929b", "#b03a6f", "#4aa5a0", "#c9b48a"),
)


def draw_sweep(plans: Sequence[Plan]) -> bytes:
    """A sweep as PNG; plans are by rising number of devices."""
    figure = Figure(figsize=(16, 4.8), dpi=110, layout="tight")
    memory, parts, scaling = figure.subplots(1, 3)
    devices = [str(plan.estimate.costs.devices) for plan in plans]
    _draw_memory(memory, plans)
    _draw_parts(parts, plans)
    _draw_scaling(scaling, plans)
    for axes in (memory, parts, scaling):
        axes.set_xticks(range(len(plans)), devices)
        axes.set_xlabel("devices, as many experts as devices")
        axes.grid(axis="y", color="#eceff2", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    title = f"{plans[0].model} on {plans[0].hardware}, constant work per device"
    figure.suptitle(legible(title))
    return to_png(figure)


def _stack(axes: Axes, series: dict[str, list[float]]) -> float:
    """Stacked bars; returns the highest top."""
    bottom = np.zeros(len(next(iter(series.values()))))
    for (name, values), color in zip(series.items(), _COLORS, strict=False):
        axes.bar(range(len(values)), values, bottom=bottom, width=0.7, label=name, color=color)
        bottom += values
    return float(bottom.max())


def _draw_memory(axes: Axes, plans: Sequence[Plan]) -> None:
    kinds = ("weights", "optimizer", "gradients", "activations")
    top = _stack(
        axes, {k: [getattr(p.estimate.costs.memory, k) / 1e9 for p in plans] for k in kinds}
    )
    compiled = [(i, p.compiled.total_bytes / 1e9) for i, p in enumerate(plans) if p.compiled]
    if compiled:
        axes.plot(*zip(*compiled, strict=True), "kD", label="TPU compiler, total")
        top = max(top, *(size for _, size in compiled))
    limit = find_hardware(plans[0].hardware).memory / 1e9
    axes.axhline(limit, color="black", linewidth=0.8, linestyle="--")
    axes.set_ylim(0, 1.45 * max(top, limit))
    axes.set_ylabel("GB per device (dashed: memory of the device)")
    axes.set_title("Memory")
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")


def _draw_parts(axes: Axes, plans: Sequence[Plan]) -> None:
    parts = [part for part in PARTS if any(part in p.estimate.seconds for p in plans)]
    top = _stack(
        axes, {part: [1e3 * p.estimate.seconds.get(part, 0.0) for p in plans] for part in parts}
    )
    axes.set_ylim(0, 1.45 * top)
    axes.set_ylabel("ms per step")
    axes.set_title("Time by part")
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper left")


def _draw_scaling(axes: Axes, plans: Sequence[Plan]) -> None:
    first = plans[0].estimate
    axes.plot(
        range(len(plans)),
        [p.estimate.step_seconds / first.step_seconds for p in plans],
        "o-",
        color=_COLORS[0],
        label="time of a step",
    )
    parameters = [p.estimate.costs.parameters / first.costs.parameters for p in plans]
    other = axes.twinx()
    other.plot(range(len(plans)), parameters, "s--", color=_COLORS[3])
    other.set_yscale("log", base=2)
    other.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    other.set_ylabel("parameters (dashed), times those of the first", color=_COLORS[3])
    other.spines["top"].set_visible(False)
    axes.set_ylim(0)
    axes.set_ylabel(f"step time relative to {first.costs.devices} devices", color=_COLORS[0])
    axes.set_title("Weak scaling")
