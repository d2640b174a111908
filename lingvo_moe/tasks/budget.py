"""A suggested number of training steps, from a fit over runs.

At first a model learns the target language alone; later its translations begin to depend on their
sources. `benchmarks/learning.py --only=budget_muon` measured when: models were trained on 1 to 117
real language pairs into English, with Muon and copies of targets as `small.*` are, until their
source use was 0.5 nats per token. See docs/results.md.
"""

import math
from typing import NamedTuple

_BATCHES = 250, 8000  # target tokens; larger and smaller ones are too far from the measured ones
_MOST_PAIRS = 117  # the largest number of pairs of a measured run
_ENOUGH = 8  # times as many steps; with 38 pairs nearly the best dev BLEU of a run


class Fit(NamedTuple):
    """Steps until a model uses its sources: first · pairs^power.

    Attributes:
        first: steps with one pair.
        power: how the number grows with the number of pairs.
        spread: runs differ from the fit by about this factor, in both directions.
    """

    first: float
    power: float
    spread: float

    def range(self, pairs: int, times: float = 1.0) -> tuple[int, int]:
        """The smallest and largest number of steps to expect, times a factor; two digits each."""
        steps = times * self.first * pairs**self.power
        return _rounded(steps / self.spread), _rounded(steps * self.spread)


READING = Fit(first=146, power=0.29, spread=1.17)


def suggestion(steps: int, tokens: float, pairs: int) -> list[str]:
    """A line with the suggested number of steps, and a warning if a run has far fewer.

    Args:
        steps: of the run.
        tokens: target tokens of a step.
        pairs: number of language pairs.

    Returns:
        The lines; none if no batch of about `tokens` was measured.
    """
    if not _BATCHES[0] <= tokens <= _BATCHES[1]:
        return []
    (low, high), (least, most) = READING.range(pairs), READING.range(pairs, _ENOUGH)
    of_pairs = "1 pair" if pairs == 1 else f"{pairs:,} pairs"
    runs = "measured runs" if pairs <= _MOST_PAIRS else f"runs with at most {_MOST_PAIRS} pairs"
    lines = [
        f"Suggested minimum for real text: between {least:,} and {most:,} steps. From {runs}: "
        f"a model of {of_pairs} begins to use its sources after about {low:,} to {high:,} steps."
    ]
    if steps < high:
        lines.append(
            f"Warning: {steps:,} steps may be too few for translations to depend on their sources. "
            f"Raise train.max_steps; see docs/guide.md."
        )
    return lines


def _rounded(steps):
    unit = 10 ** max(0, math.floor(math.log10(steps)) - 1)
    return round(steps / unit) * unit
