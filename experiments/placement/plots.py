"""Pictures of loads and placements, as PNG bytes.  S steps, D devices, E experts."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from experiments.placement.simulate import Replay
from lingvo_moe.reporting.figure import COLORS, GREY, legible, to_png

_DPI = 110
_TOP = 10  # the experts whose joint share is marked
_NAMED = 16  # number of experts with a band of their own
_ROOM = 0.03  # share of choices that a band needs for a number


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
    skew.fill_between(ranks, joint.min(axis=0), joint.max(axis=0), color=COLORS[0], alpha=0.2)
    skew.plot(ranks, joint.mean(axis=0), color=COLORS[0], linewidth=2)
    skew.plot(ranks, ranks / experts, "--", color=GREY, linewidth=1)
    if experts > _TOP:
        share = joint.mean(axis=0)[_TOP - 1]
        skew.plot([_TOP, _TOP, 0], [0, share, share], color=COLORS[1], linewidth=1)
        skew.annotate(
            f"top {_TOP}: {100 * share:.0f} %", (_TOP, share), (6, -12), textcoords="offset points"
        )
    skew.set(xlabel="experts, most popular first", ylabel="share of choices, together")
    skew.set(xlim=(0, experts), ylim=(0, 1))
    order = np.argsort(-shares.mean(axis=0), kind="stable")
    colors = colormaps["viridis"](np.linspace(0.05, 1, experts))
    bands = drift.stackplot(steps, shares[:, order].T, colors=colors)
    for band, expert in zip(bands[:_NAMED], order, strict=False):
        band.set(edgecolor="white", linewidth=0.4)
        # The number is where its band is widest.
        widest = int(shares[:, expert].argmax())
        if shares[widest, expert] > _ROOM:
            below = shares[widest, order[: int(np.flatnonzero(order == expert)[0])]].sum()
            at = steps[0] + (steps[-1] - steps[0]) * np.clip(widest / len(steps), 0.02, 0.98)
            middle = below + shares[widest, expert] / 2
            drift.text(at, middle, str(expert), color="white", ha="center", va="center", fontsize=8)
    drift.set(xlabel="step", ylabel="share of choices, by expert", ylim=(0, 1))
    drift.set_xlim(steps[0], max(steps[-1], steps[0] + 1))
    figure.suptitle(legible(title), fontsize=11)
    return to_png(figure)


def draw_ratios(runs: Sequence[Replay], steps: np.ndarray, title: str) -> bytes:
    """Balance ratio over steps, mean over layers, and milliseconds of a step, by policy.

    The axes are reciprocal: equal heights are equal differences of speed. So policies near balance
    can be distinguished although another policy is far from it.

    Args:
        runs: of one trace.
        steps: [S].
        title: above.
    """
    figure = Figure((10.5, 6.2), dpi=_DPI, layout="constrained")
    ratio, time = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.2))
    for i, run in enumerate(runs):
        # Dashes keep lines visible that coincide.
        style = {"color": COLORS[i % len(COLORS)], "linestyle": ("-", "--", ":", "-.")[i % 4]}
        ratio.plot(steps, run.ratio.mean(axis=1), label=run.policy, linewidth=1.6, **style)
        seconds = (run.seconds + run.adjustment_seconds).sum(axis=1)
        time.plot(steps, 1e3 * seconds, linewidth=1.6, **style)
    ratio.set(ylabel="balance ratio")
    time.set(ylabel="ms per step, copies included", xlabel="step")
    for axes in (ratio, time):
        low = min(axes.dataLim.minposy, 1.0)  # steps without load take no time
        high = max(axes.dataLim.y1, low)
        axes.set_yscale("function", functions=(_negative_reciprocal, _negative_reciprocal))
        axes.set_ylim(low / 1.03, high * 1.5)
        axes.yaxis.set_major_locator(FixedLocator(_reciprocal_ticks(low, high)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.grid(color="#e3e7eb")
    figure.legend(
        *ratio.get_legend_handles_labels(), loc="outside lower center", frameon=False,
        ncols=min(len(runs), 4),
    )  # fmt: skip
    figure.suptitle(legible(title), fontsize=11)
    return to_png(figure)


def draw_placement(run: Replay, shares: np.ndarray, steps: np.ndarray, title: str) -> bytes:
    """The placement at the end, and the number of slots of each expert over time; busiest on top.

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
    shades = colormaps["Blues"](np.linspace(0.4, 1.0, top))
    colors = ListedColormap(["#f4f5f6", *shades])
    picture = final.imshow(
        values, cmap=colors, vmin=-0.5, vmax=top + 0.5, aspect="auto", interpolation="nearest"
    )
    figure.colorbar(picture, ax=final, ticks=range(top + 1), label="slots on the device", pad=0.02)
    final.set(xlabel="device", ylabel="expert, busiest at the end first", title="at the end")
    extent = (steps[0] - 0.5, steps[-1] + 0.5, len(order) - 0.5, -0.5)
    picture = history.imshow(
        run.replicas[:, order].T, cmap="Blues", aspect="auto", extent=extent,
        norm=LogNorm(0.7, max(run.replicas.max(), 2)), interpolation="nearest",
    )  # fmt: skip
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100) if tick <= run.replicas.max()]
    bar = figure.colorbar(picture, ax=history, label="slots in all", ticks=ticks, pad=0.02)
    bar.ax.minorticks_off()
    bar.ax.set_yticklabels([str(tick) for tick in ticks])
    history.set(xlabel="step", title="over time")
    marks = range(0, len(order), max(1, len(order) // 16))
    final.set_yticks(marks, [str(order[i]) for i in marks])
    figure.suptitle(legible(title), fontsize=11)
    return to_png(figure)


def _negative_reciprocal(values):
    with np.errstate(divide="ignore"):
        return -1 / np.asarray(values, float)


def _reciprocal_ticks(low: float, high: float) -> list[float]:
    """Round numbers from low to high with enough distance on a reciprocal axis."""
    exponents = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    steps = (1, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 7, 8)
    ticks: list[float] = []
    for tick in (float(f"{step}e{exponent}") for exponent in exponents for step in steps):
        apart = low * (1 / ticks[-1] - 1 / tick) if ticks else 1.0
        if low * 0.99 <= tick <= high * 1.5 and apart > 0.06:
            ticks.append(tick)
    return ticks
