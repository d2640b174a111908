"""Pictures of loads and placements, as PNG bytes.  S steps, D devices, E experts."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from lingvo_moe.placement.simulate import Replay

_DPI = 110
_TOP = 10  # the experts whose joint share is marked
_COLORS = ("#1f5fa8", "#c4562d", "#3b8544", "#7a4fa3", "#8a6d3b", "#2a9d8f", "#d1495b")
_GREY = "#8a929b"


def draw_loads(shares: np.ndarray, steps: np.ndarray, title: str) -> bytes:
    """The paper's Figure 3: how skewed loads are, and how they drift.

    Args:
        shares: [S, E], each expert's part of a step's choices.
        steps: [S], their numbers.
        title: above.
    """
    figure = Figure((10.5, 4.0), dpi=_DPI, layout="constrained")
    skew, drift = figure.subplots(1, 2, width_ratios=(1, 1.7))
    experts = shares.shape[1]
    joint = np.cumsum(np.sort(shares, axis=1)[:, ::-1], axis=1)
    ranks = np.arange(1, experts + 1)
    skew.fill_between(ranks, joint.min(axis=0), joint.max(axis=0), color=_COLORS[0], alpha=0.2)
    skew.plot(ranks, joint.mean(axis=0), color=_COLORS[0], linewidth=2)
    skew.plot(ranks, ranks / experts, "--", color=_GREY, linewidth=1)
    if experts > _TOP:
        share = joint.mean(axis=0)[_TOP - 1]
        skew.plot([_TOP, _TOP, 0], [0, share, share], color=_COLORS[1], linewidth=1)
        skew.annotate(
            f"top {_TOP}: {100 * share:.0f} %", (_TOP, share), (6, -12), textcoords="offset points"
        )
    skew.set(xlabel="experts, most popular first", ylabel="share of choices, together")
    skew.set(xlim=(0, experts), ylim=(0, 1))
    order = np.argsort(-shares.mean(axis=0), kind="stable")
    colors = colormaps["viridis"](np.linspace(0.05, 1, experts))
    drift.stackplot(steps, shares[:, order].T, colors=colors, edgecolor="white", linewidth=0.3)
    drift.set(xlabel="step", ylabel="share of choices, by expert", ylim=(0, 1))
    drift.set_xlim(steps[0], max(steps[-1], steps[0] + 1))
    figure.suptitle(title, fontsize=11)
    return _png(figure)


def draw_ratios(runs: Sequence[Replay], steps: np.ndarray, title: str) -> bytes:
    """Balance ratio over steps, mean over layers, and milliseconds of a step, by policy.

    Args:
        runs: of one trace.
        steps: [S].
        title: above.
    """
    figure = Figure((10.5, 6.2), dpi=_DPI, layout="constrained")
    ratio, time = figure.subplots(2, 1, sharex=True)
    for i, run in enumerate(runs):
        # Dashes of odd lines let one of two that coincide be seen through the other.
        style = {"color": _COLORS[i % len(_COLORS)], "linestyle": ("-", "--")[i % 2]}
        ratio.plot(steps, run.ratio.mean(axis=1), label=run.policy, linewidth=1.6, **style)
        seconds = (run.seconds + run.adjustment_seconds).sum(axis=1)
        time.plot(steps, 1e3 * seconds, linewidth=1.6, **style)
    ratio.set(ylabel="balance ratio", yscale="log")
    time.set(ylabel="ms a step, copies included", yscale="log", xlabel="step")
    for axes in (ratio, time):
        axes.grid(color="#eceff2", which="both")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    figure.legend(*ratio.get_legend_handles_labels(), loc="outside right upper", frameon=False)
    figure.suptitle(title, fontsize=11)
    return _png(figure)


def draw_placement(run: Replay, shares: np.ndarray, steps: np.ndarray, title: str) -> bytes:
    """Where experts are at the end, and how many slots each had over time; the busiest on top.

    Args:
        run: the replay.
        shares: [S, E] of the layer that is shown, the first.
        steps: [S].
        title: above.
    """
    order = np.argsort(-shares[-1], kind="stable")
    height = float(np.clip(0.09 * len(order) + 1.2, 3.0, 8.0))
    figure = Figure((10.5, height), dpi=_DPI, layout="constrained")
    final, history = figure.subplots(1, 2, sharey=True)
    values = run.counts[order]
    top = max(int(values.max()), 2)
    colors = colormaps["YlGnBu"].resampled(top + 1)
    picture = final.imshow(
        values, cmap=colors, vmin=-0.5, vmax=top + 0.5, aspect="auto", interpolation="nearest"
    )
    figure.colorbar(picture, ax=final, ticks=range(top + 1), label="slots on the device")
    final.set(xlabel="device", ylabel="expert, busiest at the end first", title="at the end")
    extent = (steps[0] - 0.5, steps[-1] + 0.5, len(order) - 0.5, -0.5)
    picture = history.imshow(
        run.replicas[:, order].T, cmap="magma_r", aspect="auto", extent=extent, vmin=1,
        interpolation="nearest",
    )  # fmt: skip
    figure.colorbar(picture, ax=history, label="slots in all")
    history.set(xlabel="step", title="over time")
    marks = range(0, len(order), max(1, len(order) // 16))
    final.set_yticks(marks, [str(order[i]) for i in marks])
    figure.suptitle(title, fontsize=11)
    return _png(figure)


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()
