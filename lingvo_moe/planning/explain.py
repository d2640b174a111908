"""The result of a search as text, as JSON, and as flags that run it."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from lingvo_moe.core import plugins
from lingvo_moe.hardware.chips import find_hardware
from lingvo_moe.planning.alternatives import HAND, SearchReport
from lingvo_moe.planning.search import ROOM, Found, Priced, Strategy, apply_strategy
from lingvo_moe.reporting.table import Table
from lingvo_moe.sharding.params import ShardingParams
from lingvo_moe.tasks.params import TranslationParams

GB = 1e9
_TEXTS = ("", "mesh", "split", "split between steps", "remat", "sums")
_NUMBERS = ("step ms", "", "GB", "sent GB", "")
_LETTERS = {"heads": "A", "hidden": "H", "vocabulary": "V", "rest": "e"}


def overrides(params: TranslationParams, strategy: Strategy) -> list[str]:
    """The texts of --set that have the effect of `apply_strategy(params, strategy)`."""
    changed = []
    if strategy.sharding != params.sharding:
        changed.append(f"sharding={_sharding_text(strategy.sharding)}")
    model = apply_strategy(params, strategy).model
    for name in ("scan", "remat"):
        if getattr(model, name) != getattr(params.model, name):
            changed.append(f"model.{name}={getattr(model, name)}")
    return changed


def flags(model: str, given: Sequence[str], params: TranslationParams, strategy: Strategy) -> str:
    """A file for --flagfile of lingvo-moe-train and lingvo-moe-plan.

    Args:
        model: the registered name.
        given: the texts of --set of the search.
        params: the model with them.
        strategy: what to run.
    """
    lines = [
        "--undefok=runtime",  # lingvo-moe-plan has no such flag
        *(f"--import={name}" for name in plugins.imported()),
        f"--model={model}",
        "--runtime=spmd",
        f"--mesh={strategy.mesh}",
        *(f"--set={one}" for one in (*given, *overrides(params, strategy))),
    ]
    return "\n".join(lines) + "\n"


def _sharding_text(sharding: ShardingParams) -> str:
    default = type(sharding)()
    given = [
        f"{name}={getattr(sharding, name)!r}"
        for name in ("rules", "state_rules", "late_sums")
        if getattr(sharding, name) != getattr(default, name)
    ]
    return f"{type(sharding).__name__}({', '.join(given)})"


def rows(report: SearchReport) -> list[tuple[str, Priced | str]]:
    """Name and cost, or the reason if the model cannot be split so; the chosen strategy first."""
    found = report.found
    second = [("second", found.runner_up), ("without the limit", found.fastest)]
    others = [(name, one) for name, one in second if one and one != found.best]
    return [("chosen", found.best), *others, *report.alternatives.items()]


def format_search(model: str, hardware: str, devices: int, report: SearchReport) -> str:
    """The chosen strategy, alternatives, and the time of each part of the model."""
    device, best = find_hardware(hardware), report.found.best
    table, refusals = [], []
    for name, priced in rows(report):
        if isinstance(priced, str):
            refusals.append(f"{name} is not possible: {priced}")
            continue
        strategy = priced.strategy
        table.append(
            (
                name,
                str(strategy.mesh),
                _cut(strategy),
                at_rest(strategy),
                "yes" if strategy.remat else "no",
                sums(strategy),
                f"{1e3 * priced.seconds:.1f}",
                f"{priced.seconds / best.seconds:.2f}x",
                f"{priced.bytes / GB:.2f}",
                f"{priced.sent / GB:.2f}",
                "" if priced.fits else "OUT OF MEMORY",
            )
        )
    return "\n".join(
        [
            f"{model} on {devices} x {hardware}, the fastest of {report.found.considered:,} "
            f"strategies that take {ROOM:.0%} of {device.memory / GB:.1f} GB or less",
            *_limit(report.found),
            "",
            Table(_TEXTS + _NUMBERS, table, texts=len(_TEXTS)).to_text(),
            *refusals,
            "",
            _parts(best, report).to_text(),
        ]
    )


def _limit(found: Found) -> list[str]:
    """A line on the limit of bytes, and whether the chosen strategy is within it."""
    if found.max_sent == math.inf:
        return []
    line = f"and send {found.max_sent / GB:.2f} GB per step or less"
    return [line + ("" if found.within else "; none of them fits, so the one that sends least")]


def _parts(best: Priced, report: SearchReport) -> Table:
    """Time by part, compared with the paper's annotation."""
    hand = report.alternatives[HAND]
    shown = {"chosen": best} | ({HAND: hand} if isinstance(hand, Priced) else {})
    parts = dict.fromkeys(part for one in shown.values() for part in one.estimate.seconds)
    cells = [
        (part, *(f"{1e3 * one.estimate.seconds.get(part, 0.0):.1f}" for one in shown.values()))
        for part in parts
    ]
    return Table(("ms of a step", *shown), cells)


def _cut(strategy: Strategy) -> str:
    return "".join(_LETTERS[c.group] for c in strategy.choices if c.cut) or "–"


def sums(strategy: Strategy) -> str:
    """When gradients of micro-batches are summed over devices: "late" or "each"."""
    return {None: "–", True: "late", False: "each"}[strategy.late]


def at_rest(strategy: Strategy) -> str:
    """The additional splits of weights between steps, as text."""
    spread = ",".join(_LETTERS[c.group] for c in strategy.choices if c.spread)
    parts = ["M over data"] * strategy.zero + [f"{spread} over expert"] * bool(spread)
    return ", ".join(parts) or "–"


def search_to_json(report: SearchReport) -> list[dict[str, Any]]:
    """A dict for each of `rows`, in SI units and bytes."""
    result: list[dict[str, Any]] = []
    for name, priced in rows(report):
        if isinstance(priced, str):
            result.append({"name": name, "refused": priced})
            continue
        strategy, costs = priced.strategy, priced.estimate.costs
        result.append(
            {
                "name": name,
                "mesh": strategy.mesh.sizes,
                "sharding": _sharding_text(strategy.sharding),
                "remat": strategy.remat,
                "late_sums": strategy.late,
                "step_seconds": priced.seconds,
                "seconds": priced.estimate.seconds,
                "memory": dataclasses.asdict(costs.memory),
                "fits": priced.fits,
                "sent": dict(costs.sent),
            }
        )
        if priced is report.found.best:
            most = report.found.max_sent
            limit = {"bytes": most if math.isfinite(most) else None, "within": report.found.within}
            result[-1]["sent_limit"] = limit
    return result
