"""RunExposure of the data that a training run will use: epochs of each language pair."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lingvo_moe.data.curriculum import Curriculum
from lingvo_moe.data.pipeline import TrainInput
from lingvo_moe.evaluation.report import thirds
from lingvo_moe.reporting.table import Table
from lingvo_moe.tasks.budget import suggestion

FEW, MANY = 1.0, 100.0  # epochs; a pair outside this range gets a warning
TOO_LONG = 0.01  # there is a warning if at least this share of the draws does not fit a row
_ROWS = 12  # for more pairs the table has tiers
_ENDLESS = 1_000_000_000  # steps; no run has more
_MEASURED = 4000  # examples that are packed to measure how many fit a batch


class Exposure(NamedTuple):
    """The exposure of a run to one pair.

    Attributes:
        pair: its name.
        examples: in its training split.
        epochs: how often the run draws each example, on average.
        once: number of steps for one epoch; None if no number is enough, as for a corpus whose
            last stage has ended.
    """

    pair: str
    examples: int
    epochs: float
    once: int | None = None


@dataclasses.dataclass(frozen=True)
class RunExposure:
    """The data of a training run.

    Attributes:
        steps: of the whole run, from its first.
        examples, tokens: sentence pairs and target tokens of one step, on average.
        pairs: one entry for each pair and corpus, those with most examples first.
        num_pairs: number of language pairs that are drawn.
        too_long: share of the draws that are left out, because they are longer than a row.
    """

    steps: int
    examples: float
    tokens: float
    pairs: Sequence[Exposure]
    num_pairs: int
    too_long: float = 0.0

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
        once = steps_for_one_epoch(source.curriculum, drawn)
        pairs = tuple(
            one._replace(once=once[one.pair]) for one in expose(sizes, shares, steps * drawn)
        )
        used = {of.index for of, share in zip(streams, shares, strict=True) if share}
        return RunExposure(
            steps, float(examples), float(tokens), pairs, len(used), following.skipped
        )

    def lines(self, suggest: bool = True) -> list[str]:
        """The forecast as text: totals, epochs by pair or by tier, suggested steps, warnings.

        Args:
            suggest: whether to suggest steps; the suggestion is for a model without any training.
        """
        total = (
            f"This run: {self.steps:,} steps of about {self.examples:,.0f} examples and "
            f"{self.tokens:,.0f} target tokens, {self.steps * self.tokens / 1e6:,.2f}M target "
            f"tokens in all."
        )
        suggested = suggestion(self.steps, self.tokens, self.num_pairs) if suggest else []
        return [total, *self._table().to_text().splitlines(), *suggested, *self.warnings()]

    def warnings(self) -> list[str]:
        """Warnings: pairs that are drawn too rarely or too often, examples that are too long."""
        few = [one for one in self.pairs if one.epochs < FEW]
        many = [one for one in self.pairs if one.epochs > MANY]
        lines: list[str] = []
        if few:
            least = min(few, key=lambda one: one.epochs)
            lines.append(
                f"Warning: {self._count(few)} less than once, {least.pair} {least.epochs:.2f} times"
                f"{_cure(least)}"
            )
        if many:
            most = max(many, key=lambda one: one.epochs)
            lines.append(
                f"Warning: {self._count(many)} more than {MANY:.0f} times, {most.pair} "
                f"{most.epochs:,.0f} times: the model may memorise them. If their dev scores get "
                f"worse, lower {self._settings_to_lower(most)}."
            )
        if self.too_long >= TOO_LONG:
            lines.append(
                f"Warning: about {self.too_long:.0%} of the drawn examples are longer than a row "
                f"and will be left out. Raise input.source_length or input.target_length in a new "
                f"logdir; they cannot change later."
            )
        return lines

    def _count(self, some):
        if len(self.pairs) == 1:
            return "the pair will be seen"
        return f"{len(some)} of {len(self.pairs)} pairs will be seen"

    def _settings_to_lower(self, most):
        """What to lower so that a pair is seen less often.

        The temperature is named only if the examples of the pair are seen more often than the
        average example of all pairs.
        """
        size = sum(one.examples for one in self.pairs)
        mean = sum(one.epochs * one.examples for one in self.pairs) / size
        favoured = most.epochs > 1.01 * mean
        return "input.temperature or train.max_steps" if favoured else "train.max_steps"

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


def steps_for_one_epoch(curriculum: Curriculum, drawn: float) -> dict[str, int | None]:
    """Name of a stream -> number of steps until all its examples are drawn; None for never.

    Args:
        curriculum: the streams, and their probabilities in each stage.
        drawn: examples of one step.
    """
    ends = [*curriculum.starts[1:], _ENDLESS]
    stages = list(zip(curriculum.starts, ends, curriculum.probabilities, strict=True))
    found: dict[str, int | None] = {}
    for i, stream in enumerate(curriculum.streams):
        left, found[stream.name] = float(stream.size), None
        for start, end, probabilities in stages:
            rate = float(probabilities[i]) * drawn
            if left <= rate * (end - start):
                found[stream.name] = start + math.ceil(left / rate)
                break
            left -= rate * (end - start)
    return found


def _cure(one: Exposure) -> str:
    if one.once is None:
        return (
            ". More steps do not change this: raise its share by input.temperature, "
            "input.pair_factors or the weights of corpora."
        )
    return f": {one.once:,} steps are one epoch of it. Raise train.max_steps."


def _range(values, form):
    return f"{min(values):{form}} to {max(values):{form}}"
