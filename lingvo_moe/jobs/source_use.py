"""Source use: dev loss with sources of other sentences minus dev loss.

It is 0 for a model that ignores its source, such as a language model of the target.
P language pairs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingvo_moe.data.dataset import Dataset, Example
from lingvo_moe.data.packing import pack
from lingvo_moe.data.pipeline import InputParams
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.system.lines import first_of

NEAR_ZERO = 0.1  # nats per token; lower values give a warning
_LEAST_TOKENS = 100  # a warning names no pair with fewer tokens, because of noise


class SplitBatches(NamedTuple):
    """The batches of a split in two parts; see `packing.batch_of`.

    Attributes:
        sampled: examples on which source use is measured.
        foreign: the same targets, each with the source of another example of its pair.
        rest: all other examples.
    """

    sampled: list[NestedMap]
    foreign: list[NestedMap]
    rest: list[NestedMap]

    @staticmethod
    def of(
        dataset: Dataset, params: InputParams, sentences: int, split: str = "dev"
    ) -> "SplitBatches":
        """All examples of a split that fit a row, those of `sampled` spread evenly over each pair.

        Args:
            dataset: prepared data.
            params: they give the pairs and the shape of a batch.
            sentences: size of the sample, spread evenly over the pairs; 0 for no sample. Of each
                pair at least about 200 target tokens are sampled, if it has them: a warning names
                only pairs with at least 100. A pair with one example is not sampled, because it has
                no other source.
            split: "dev" or "test".

        Raises:
            OSError: a shard is missing or damaged.
        """
        names = params.pairs or [pair.name for pair in dataset.pairs]
        share = math.ceil(sentences / len(names))
        sampled, foreign, rest = [], [], []
        for pair in map(dataset.pair, names):
            given = dataset.examples(split, pair.name)
            examples = [example for example in given if params.shape.has_room(example)]
            tokens = sum(len(example.target) for example in examples)
            least = math.ceil(2 * _LEAST_TOKENS * len(examples) / tokens) if tokens else 0
            chosen = spread(len(examples), max(2, share, least) if share else 0)
            own = [examples[i] for i in chosen]
            sampled += [(example, pair.index) for example in own]
            foreign += [(example, pair.index) for example in exchange_sources(own)]
            left = sorted(set(range(len(examples))) - set(chosen))
            rest += [(examples[i], pair.index) for i in left]
        return SplitBatches(*(list(pack(part, params.shape)) for part in (sampled, foreign, rest)))


def spread(total: int, wanted: int) -> list[int]:
    """At most `wanted` evenly spaced numbers below `total`; none if there are fewer than 2.

    Neighbouring lines of a corpus are often of one document, with the same names.
    """
    count = min(total, wanted)
    return [i * total // count for i in range(count)] if count > 1 else []


def exchange_sources(examples: Sequence[Example]) -> list[Example]:
    """Each target with the source half the list further, so that all sources change."""
    half = len(examples) // 2
    sources = [*examples[half:], *examples[:half]]
    return [
        Example(other.source, example.target)
        for example, other in zip(examples, sources, strict=True)
    ]


def evaluate_batches(runtime: Any, batches: Sequence[NestedMap]) -> NestedMap:
    """The summed metrics of batches, as numpy; an empty NestedMap without batches."""
    return add_metrics([runtime.evaluate(batch) for batch in batches])


def add_metrics(metrics: Sequence[NestedMap]) -> NestedMap:
    """The sums of metrics, as numpy; an empty NestedMap without any."""
    if not metrics:
        return NestedMap()
    return metrics[0].map(lambda *xs: sum(np.asarray(x) for x in xs), *metrics[1:])


class SourceUse(NamedTuple):
    """Source use in nats a target token.

    Attributes:
        overall: over all sampled tokens.
        pairs: pair -> source use over its tokens.
        reliable: the pairs with enough tokens to be named in a warning.
    """

    overall: float
    pairs: Mapping[str, float]
    reliable: frozenset[str]

    @staticmethod
    def of(sampled: NestedMap, foreign: NestedMap, pairs: Sequence[str]) -> "SourceUse":
        """Source use from the summed metrics of a TranslationTask on SplitBatches.

        Args:
            sampled, foreign: with pair_nll and pair_tokens [P].
            pairs: P names.
        """
        tokens = np.asarray(sampled.pair_tokens, np.float64)
        extra = np.asarray(foreign.pair_nll, np.float64) - np.asarray(sampled.pair_nll, np.float64)
        found = [row for row in zip(pairs, extra, tokens, strict=True) if row[2]]
        return SourceUse(
            float(extra.sum() / tokens.sum()),
            {pair: float(nats / count) for pair, nats, count in found},
            frozenset(pair for pair, _, count in found if count >= _LEAST_TOKENS),
        )

    def scalars(self) -> dict[str, float]:
        """TensorBoard tag -> value."""
        by_pair = {f"dev/source_use/{pair}": use for pair, use in self.pairs.items()}
        return {"dev/source_use": self.overall, **by_pair}

    def warnings(self) -> list[str]:
        """A line if source use is near 0 for some pairs, or for all together."""
        low = sorted((use, pair) for pair, use in self.pairs.items() if use < NEAR_ZERO)
        low = [(use, pair) for use, pair in low if pair in self.reliable]
        if not low and self.overall >= NEAR_ZERO:
            return []
        of = f"for {len(low)} of {len(self.reliable)} pairs" if low else "over all pairs"
        names = first_of([f"{pair} {use:z.2f}" for use, pair in low])
        named = f" ({names})" if low else ""
        return [
            f"Warning: source use is below {NEAR_ZERO} nats per token {of}{named}: translations "
            f"hardly depend on their sources. Train longer, or with more text."
        ]
