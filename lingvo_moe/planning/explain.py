"""The result of a search as text, as JSON, and as flags that run it."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from lingvo_moe.config import plugins
from lingvo_moe.planning.search import HAND, ROOM, Found, Strategy, apply_strategy
from lingvo_moe.reporting.table import Table
from lingvo_moe.sbp.params import ShardingParams
from lingvo_moe.tasks.params import TranslationParams

GB = 1e9
_LETTERS = {"heads": "A", "hidden": "H", "vocabulary": "V", "rest": "e"}
_SUMS = {None: "–", True: "late", False: "each"}


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
    """A file for --flagfile of lingvo-moe-train and lingvo-moe-plan that runs a strategy of a
    registered model; params are the model with the given texts of --set."""
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


def search_to_json(found: Found) -> list[dict[str, Any]]:
    """A dict for each strategy, the chosen one first, in SI units and bytes."""
    others = [("without the limit", found.fastest)] * (found.fastest != found.best)
    result: list[dict[str, Any]] = []
    for name, priced in [("chosen", found.best), *others, *found.alternatives.items()]:
        if isinstance(priced, str):
            result.append({"name": name, "refused": priced})
            continue
        strategy, costs = priced.strategy, priced.estimate.costs
        result.append(
            {
                "name": name,
                "mesh": strategy.mesh.sizes,
                "split": "".join(_LETTERS[group] for group in strategy.cut) or "–",
                "split_at_rest": at_rest(strategy),
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
    limit = found.max_sent if math.isfinite(found.max_sent) else None
    result[0]["sent_limit"] = {"bytes": limit, "within": found.within}
    return result


def at_rest(strategy: Strategy) -> str:
    """The additional splits of weights between steps, as text."""
    spread = ",".join(_LETTERS[group] for group in strategy.spread)
    parts = ["M over data"] * strategy.zero + [f"{spread} over expert"] * bool(spread)
    return ", ".join(parts) or "–"


def format_search(title: str, found: Found) -> str:
    """The chosen strategy, alternatives, and the time of each part of the model, under a title."""
    answers = search_to_json(found)
    best, limit = answers[0], answers[0]["sent_limit"]
    rows = [one for one in answers if "mesh" in one]
    lines = [
        f"{title}, the fastest of {found.considered:,} strategies that take {ROOM:.0%} of the "
        f"memory or less"
    ]
    if limit["bytes"] is not None:
        none = "" if limit["within"] else "; none of them fits, so the one that sends least"
        lines.append(f"and send {limit['bytes'] / GB:.2f} GB per step or less{none}")
    texts = ("", "mesh", "split", "split between steps", "remat", "sums")
    cells = [
        (
            one["name"],
            ",".join(f"{axis}:{size}" for axis, size in one["mesh"].items()),
            one["split"],
            one["split_at_rest"],
            "yes" if one["remat"] else "no",
            _SUMS[one["late_sums"]],
            f"{1e3 * one['step_seconds']:.1f}",
            f"{one['step_seconds'] / best['step_seconds']:.2f}x",
            f"{sum(one['memory'].values()) / GB:.2f}",
            f"{sum(one['sent'].values()) / GB:.2f}",
            "" if one["fits"] else "OUT OF MEMORY",
        )
        for one in rows
    ]
    numbers = ("step ms", "", "GB", "sent GB", "")
    shown = {one["name"]: one["seconds"] for one in rows if one["name"] in ("chosen", HAND)}
    parts = [
        (part, *(f"{1e3 * seconds.get(part, 0.0):.1f}" for seconds in shown.values()))
        for part in dict.fromkeys(part for seconds in shown.values() for part in seconds)
    ]
    return "\n".join(
        [
            *lines,
            "",
            Table(texts + numbers, cells, texts=len(texts)).to_text(),
            *(f"{r['name']} is not possible: {r['refused']}" for r in answers if "refused" in r),
            "",
            Table(("ms of a step", *shown), parts).to_text(),
        ]
    )
