"""RunExposure of the data that a training run will use: epochs of each language pair."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lingvo_moe.data.pipeline import TrainInput
from lingvo_moe.evaluation.report import thirds
from lingvo_moe.reporting.table import Table

_ROWS = 12  # for more pairs the table has tiers
_MEASURED = 4000  # examples that are packed to measure how many fit a batch


class Exposure(NamedTuple):
    """The exposure of a run to one pair.

    Attributes:
        pair: its name.
        examples: in its training split.
        epochs: how often the run draws each example, on average.
    """

    pair: str
    examples: int
    epochs: float


@dataclasses.dataclass(frozen=True)
class RunExposure:
    """The data of a training run.

    Attributes:
        steps: of the whole run, from its first.
        examples, tokens: sentence pairs and target tokens of one step, on average.
        pairs: one entry for each pair and corpus, those with most examples first.
        too_long: share of the draws that are left out, because they are longer than a row.
        unchanged: modifier -> share of its examples that it would make longer than a row, and that
            stay as they are.
    """

    steps: int
    examples: float
    tokens: float
    pairs: Sequence[Exposure]
    too_long: float = 0.0
    unchanged: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @staticmethod
    def of(source: TrainInput, steps: int) -> "RunExposure":
        """The forecast of a run on an input; the input does not advance.

        Batches are packed, so the number of examples in a batch is measured on the next ones.
        Examples that are drawn and left out, because they are longer than a row, count for epochs.

        Raises:
            ValueError, OSError: the input gives no batch.
        """
        following = source.peek(_MEASURED)
        segments = [batch.target_segment_ids for batch in following.batches]
        examples = np.mean([one.max(axis=1).sum() for one in segments]) / source.packed_share
        tokens = np.mean([np.count_nonzero(one) for one in segments]) / source.packed_share
        streams, shares = source.curriculum.streams, source.curriculum.shares(steps)
        drawn = float(examples) / (1 - following.skipped)
        sizes = {stream.name: stream.size for stream in streams}
        pairs = expose(sizes, shares, steps * drawn)
        return RunExposure(steps, float(examples), float(tokens), pairs, *following[1:])

    def lines(self) -> list[str]:
        """The forecast as text: totals, and epochs by pair or by tier."""
        total = (
            f"This run: {self.steps:,} steps of about {self.examples:,.0f} examples and "
            f"{self.tokens:,.0f} target tokens, {self.steps * self.tokens / 1e6:,.2f}M target "
            f"tokens in all."
        )
        if self.too_long:
            total += (
                f" {self.too_long:.1%} of the drawn examples do not fit a row and are left out."
            )
        unchanged = (
            f"{name} leaves {share:.1%} of its examples as they are: changed, they fit no row."
            for name, share in self.unchanged.items()
            if share
        )
        return [total, *self._table().to_text().splitlines(), *unchanged]

    def _table(self):
        if len(self.pairs) <= _ROWS:
            pairs = [(p.pair, f"{p.examples:,}", f"{p.epochs:,.1f}") for p in self.pairs]
            return Table(("pair", "examples", "epochs"), pairs)
        rows = [
            (
                tier,
                str(len(pairs)),
                _range([p.examples for p in pairs], ",.0f"),
                _range([p.epochs for p in pairs], ",.1f"),
            )
            for tier, pairs in thirds(self.pairs).items()
        ]
        return Table(("tier", "pairs", "examples", "epochs"), rows)


def expose(
    sizes: Mapping[str, int], probabilities: Iterable[float], drawn: float
) -> tuple[Exposure, ...]:
    """The exposure of each pair, those with most examples first.

    Args:
        sizes: pair -> examples in train.
        probabilities: of drawing each pair, in the order of sizes.
        drawn: examples of the whole run.
    """
    seen = [
        Exposure(pair, size, float(probability) * drawn / size)
        for (pair, size), probability in zip(sizes.items(), probabilities, strict=True)
    ]
    return tuple(sorted(seen, key=lambda one: (-one.examples, one.pair)))


def _range(values, form):
    return f"{min(values):{form}} to {max(values):{form}}"
