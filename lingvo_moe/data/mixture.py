"""The mixture of training examples: the pairs of one or several corpora.  P streams."""

import dataclasses
import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lingvo_moe.config.fields import NonNegativeFloat, Params
from lingvo_moe.config.patterns import Factors, check_found, first_match
from lingvo_moe.data.dataset import SIDES, Dataset, PairInfo
from lingvo_moe.data.modifiers.base import Body, Modifier, ModifierContext
from lingvo_moe.data.records import Example

MAIN = "data"  # the name of the main dataset, --data of training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus(Params):
    """A further prepared dataset with the same vocabularies, such as mined or back-translated text.

    Attributes:
        name: its name in logs and errors.
        data: its directory.
        weight: examples are drawn from it this many times as often as from the main dataset.
        tag: a text before every source, after the language's tag, such as "<bt>" (Caswell et al.
            2019, Tagged Back-Translation); "" for none.
    """

    name: str
    data: str
    weight: NonNegativeFloat = 1.0
    tag: str = ""


@dataclasses.dataclass(frozen=True)
class Stream:
    """The training examples of one pair in one corpus."""

    corpus: str  # the name of the corpus
    dataset: Dataset  # the dataset of the corpus
    pair: PairInfo  # the pair in that dataset
    index: int  # the index of the pair in the main dataset
    number: int = 0  # the number of the corpus; 0 is the main dataset
    tag: tuple[int, ...] = ()  # ids before its sources, after the language's tag; () for none

    @property
    def size(self) -> int:
        """Number of examples."""
        return self.pair.examples["train"]

    def example(self, index: int) -> Example:
        """One example, without the tag; raises as `Dataset.example`."""
        return self.dataset.example("train", self.pair, index)

    def change(self, example: Example, index: int, modifier: Modifier, seed: int) -> Example:
        """The example of this index, changed; unchanged if a side would be empty."""

        def following(k):
            return self._body(self.example(index + k)) if index + k < self.size else None

        vocabularies = self.dataset.source_vocabulary, self.dataset.target_vocabulary
        context = ModifierContext(vocabularies, following, random.Random(seed))
        body = modifier.apply(self._body(example), context)
        if not (body.source and body.target):
            return example
        source, target = (
            np.concatenate([side[:tags], ids, side[-1:]]).astype(np.int32)
            for side, tags, ids in zip(example[:2], self._tags, body, strict=True)
        )
        return Example(source, target)

    def with_tag(self, example: Example) -> Example:
        """The example with the corpus's tag, after the language's tag."""
        if not self.tag:
            return example
        source = np.insert(example.source, self._tags[0], self.tag).astype(np.int32)
        return example._replace(source=source)

    @property
    def _tags(self) -> tuple[int, int]:
        """Number of tags in front of source and target."""
        return 1, int(self.dataset.tags_on_both_sides)

    def _body(self, example: Example) -> Body:
        source, target = self._tags
        return Body(example.source[source:-1].tolist(), example.target[target:-1].tolist())

    @property
    def name(self) -> str:
        """The pair, with the corpus if that is not the main dataset."""
        return f"{self.pair.name} ({self.corpus})" if self.number else self.pair.name


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The streams to draw from, and their probabilities."""

    streams: tuple[Stream, ...]  # P streams, those of the main dataset first
    probabilities: np.ndarray  # float64 [P], all above 0

    @staticmethod
    def of(
        dataset: Dataset,
        corpora: Sequence[Corpus],
        pairs: Sequence[str],
        temperature: float,
        pair_factors: Factors,
    ) -> "Mixture":
        """The mixture of a training run: main dataset, further corpora, and fields of InputParams.
        Raises ValueError: a corpus does not fit the dataset; a pair is unknown or has no examples;
        or no pair has a probability above 0."""
        streams = [*_streams(dataset), *_further(dataset, corpora)]
        _check_pairs(streams, dataset, corpora, pairs)
        patterns = [pattern for pattern, _ in pair_factors]
        check_found(patterns, [pair.name for pair in dataset.pairs], "input.pair_factors")
        found = np.zeros(len(streams))
        for corpus, weight in [(MAIN, 1.0), *((one.name, one.weight) for one in corpora)]:
            here = [
                i
                for i, one in enumerate(streams)
                if one.corpus == corpus and (one.pair.name in pairs or not pairs)
            ]
            if here:
                factors = [first_match(pair_factors, streams[i].pair.name, 1.0) for i in here]
                sizes = [streams[i].size for i in here]
                shares = sampling_probabilities(sizes, temperature)
                found[here] = weight * np.array(factors) * shares
        if not found.any():
            raise ValueError(
                f"input.pair_factors={pair_factors} and the weights of input.corpora leave out all "
                f"pairs; give one of them a factor and a weight above 0."
            )
        used = np.flatnonzero(found)
        return Mixture(tuple(streams[i] for i in used), found[used] / found.sum())

    @property
    def examples(self) -> dict[str, int]:
        """Pair -> number of its examples in all corpora; only pairs that are drawn."""
        sizes: Counter[str] = Counter()
        for stream in self.streams:
            sizes[stream.pair.name] += stream.size
        return dict(sizes)


def sampling_probabilities(sizes: list[int], temperature: float) -> np.ndarray:
    """float64 [P], p ∝ size^(1/T): T = 1 samples by size, large T evenly (Arivazhagan 2019)."""
    # Sizes relative to the largest, because the power of a size could overflow.
    weights = np.power(np.array(sizes, np.float64) / max(sizes), 1.0 / temperature)
    return weights / weights.sum()


def identity(dataset: Dataset, corpora: Sequence[Corpus]) -> str:
    """SHA-256 of the dataset and the further corpora, in hexadecimal."""
    digests = [dataset.sha256, *(Dataset.load(Path(one.data)).sha256 for one in corpora)]
    return hashlib.sha256("".join(digests).encode()).hexdigest() if corpora else digests[0]


def _streams(dataset: Dataset) -> list[Stream]:
    return [
        Stream(MAIN, dataset, pair, pair.index)
        for pair in dataset.pairs
        if pair.examples.get("train")
    ]


def _further(dataset: Dataset, corpora: Sequence[Corpus]) -> list[Stream]:
    streams = []
    indices = {pair.name: pair.index for pair in dataset.pairs}
    for number, corpus in enumerate(corpora, 1):
        other = Dataset.load(Path(corpus.data))
        for stream in _streams(other):
            if stream.pair.name not in indices:
                raise ValueError(
                    f"Corpus {corpus.name} in {corpus.data} has pair {stream.pair.name}, which "
                    f"{dataset.directory} does not have. Prepare that dataset with text of this "
                    f"pair."
                )
        for side in SIDES:
            if other.hashes.get(side) != dataset.hashes.get(side):
                raise ValueError(
                    f"Corpus {corpus.name} in {corpus.data} has another {side} vocabulary than "
                    f"{dataset.directory}. Prepare it with --extend={dataset.directory} "
                    f"--new_pieces=0."
                )
        if other.tags_on_both_sides != dataset.tags_on_both_sides:
            raise ValueError(
                f"Corpus {corpus.name} in {corpus.data} has other language tags than "
                f"{dataset.directory}. Prepare both with the same --tags_on_both_sides."
            )
        tag = tuple(dataset.source_vocabulary.encode([corpus.tag])[0]) if corpus.tag else ()
        for stream in _streams(other):
            index = indices[stream.pair.name]
            streams.append(Stream(corpus.name, other, stream.pair, index, number, tag))
    return streams


def _check_pairs(streams, dataset, corpora, pairs) -> None:
    """Raises ValueError if a named pair is unknown, or has no examples in any corpus."""
    named = [dataset.pair(name).name for name in pairs]
    present = {stream.pair.name for stream in streams}
    empty = [name for name in named if name not in present]
    if empty or not present:
        further = ", ".join(corpus.name for corpus in corpora)
        raise ValueError(
            f"There are no training examples for {', '.join(empty) or 'any pair'} in "
            f"{dataset.directory}{f' and in the corpora {further}' if further else ''}. Prepare "
            f"training text for them, or leave them out of input.pairs."
        )
