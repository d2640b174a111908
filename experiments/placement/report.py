"""The results of a simulation: a table for a terminal, JSON with pictures, and one HTML page.

DIRECTORY/index.html                     all of it, in one file
DIRECTORY/placement.json                 the numbers
DIRECTORY/{loads,ratios,placement}.png
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.placement.plots import draw_loads, draw_placement, draw_ratios
from experiments.placement.simulate import Replay, Summary, speed_up
from lingvo_moe.placement.traces import Trace
from lingvo_moe.reporting.page import escape, image, write_page
from lingvo_moe.reporting.table import Table, rounded

_COLUMNS = (
    "policy",
    "ms per step",
    "compute",
    "exchange",
    "sync",
    "copies",
    "tokens %",
    "experts %",
    "ratio",
    "worst",
    "moves",
    "speed-up",
    "per choice",
)
_NOTES = (
    "Milliseconds of the Mixture-of-Experts layers of one step by the cost model, of the busiest "
    "device; copies: time of moving experts, without overlap. tokens %: choices that the "
    "chosen expert handled. experts %: these divided by the rows that devices computed or "
    "could have computed while the busiest worked. ratio: the busiest device's rows over the mean. "
    "moves: replicas copied per step. speed-up: of a step over that of {base}; per choice: of a "
    "choice handled by the chosen expert."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Summaries of several policies on one trace; the others are compared with the first.

    Attributes:
        settings: of the simulation, name -> value.
        summaries: one for each policy.
        other_seconds: of a step outside the MoE layers.
    """

    settings: Mapping[str, object]
    summaries: tuple[Summary, ...]
    other_seconds: float = 0.0

    def table(self) -> Table:
        """A row for each policy."""
        return Table(_COLUMNS, [self._cells(s) for s in self.summaries])

    def to_json(self) -> dict:
        """All numbers."""
        policies = []
        for summary in self.summaries:
            step, choice = speed_up(summary, self.summaries[0], self.other_seconds)
            speed_ups = {"speed_up": step, "speed_up_per_choice": choice}
            policies.append(rounded(dataclasses.asdict(summary) | speed_ups))
        return {
            "settings": dict(self.settings),
            "other_seconds": self.other_seconds,
            "policies": policies,
        }

    def write(self, directory: pathlib.Path, trace: Trace, runs: Sequence[Replay]) -> None:
        """Writes the page, its pictures and the JSON; the directory is made if missing.

        The picture of the placement is for the first policy that moved experts, or the first of
        all.
        """
        pictures = self._draw(trace, runs)
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        parts = [
            f"<p>{escape(settings)}</p>",
            self.table().to_html(),
            f'<p class="mark">{escape(_NOTES.format(base=self.summaries[0].policy))}</p>',
            *(
                f"<h2>{title}</h2>{image(pictures[name], title)}"
                for name, title in (
                    ("loads", "Loads"),
                    ("ratios", "Balance and time"),
                    ("placement", "Placement"),
                )
            ),
        ]
        write_page(directory, "Expert placement", parts, pictures, {"placement": self.to_json()})

    def _draw(self, trace: Trace, runs: Sequence[Replay]) -> dict[str, bytes]:
        loads = trace.of_layer(0).sum(axis=1, dtype=np.int64)
        shares = loads / np.maximum(loads.sum(axis=1, keepdims=True), 1)
        shown = next((run for run in runs if run.moves.any()), runs[0])
        layer = trace.layers[0]
        return {
            "loads": draw_loads(shares, trace.steps, f"{layer}: loads of experts"),
            "ratios": draw_ratios(runs, trace.steps, "Policies"),
            "placement": draw_placement(
                shown, shares, trace.steps, f"{layer}: slots of experts, {shown.policy}"
            ),
        }

    def _cells(self, s: Summary) -> tuple[str, ...]:
        step, choice = speed_up(s, self.summaries[0], self.other_seconds)
        milliseconds = (s.step_seconds, s.compute, s.exchange, s.synchronise, s.adjustment)
        return (
            s.policy,
            *(f"{1e3 * seconds:.2f}" for seconds in milliseconds),
            f"{100 * s.token_efficiency:.1f}",
            f"{100 * s.expert_efficiency:.1f}",
            f"{s.ratio:.2f}",
            f"{s.worst_ratio:.2f}",
            f"{s.moves:.1f}",
            f"{step:.2f}x",
            f"{choice:.2f}x",
        )
