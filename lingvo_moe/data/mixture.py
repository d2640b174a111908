"""The mixture of training examples: several corpora, and changes at given steps.  P streams."""

import dataclasses
import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lingvo_moe.core.fields import NonNegativeFloat, Params, PositiveFloat, PositiveInt
from lingvo_moe.core.patterns import Factors, check_found, first_match
from lingvo_moe.data.dataset import SIDES, Dataset, PairInfo
from lingvo_moe.data.modifiers.base import Body, Modifier, ModifierContext
from lingvo_moe.data.records import Example

MAIN = "data"  # the name of the main dataset, --data of training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus(Params):
    """A further prepared dataset with the same vocabularies, such as mined or back-translated text.

    Attributes:
        name: its name in stages, logs and errors.
        data: its directory.
        weight: examples are drawn from it this many times as often as from the main dataset.
        tag: a text before every source, after the language's tag, such as "<bt>" (Caswell et al.
            2019, Tagged Back-Translation); "" for none.
    """

    name: str
    data: str
    weight: NonNegativeFloat = 1.0
    tag: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage(Params):
    """Changes the mixture of InputParams from a step on.

    A field that is None has the value of InputParams, not of the stage before.

    Attributes:
        from_step: number of steps before this stage.
        pairs, temperature, pair_factors: as in InputParams.
        weights: (name of a corpus, weight), …; the main dataset is "data". Other corpora have the
            weight of InputParams.
    """

    from_step: PositiveInt
    pairs: tuple[str, ...] | None = None
    temperature: PositiveFloat | None = None
    pair_factors: Factors | None = None
    weights: tuple[tuple[str, NonNegativeFloat], ...] = ()


class Mixture(NamedTuple):
    """The mixture of one stage; the fields are those of Stage."""

    pairs: tuple[str, ...]
    temperature: float
    pair_factors: Factors
    weights: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Stream:
    """The training examples of one pair in one corpus.

    Attributes:
        corpus: the name of the corpus.
        dataset: the dataset of the corpus.
        pair: the pair in that dataset.
        index: the index of the pair in the main dataset.
        number: the number of the corpus; 0 is the main dataset.
        tag: ids before its sources, after the language's tag; () for none.
    """

    corpus: str
    dataset: Dataset
    pair: PairInfo
    index: int
    number: int = 0
    tag: tuple[int, ...] = ()

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
class Curriculum:
    """The streams to draw from, and their probabilities in each stage.

    Attributes:
        streams: P streams, those of the main dataset first.
        starts: the first step of each stage; the first is 0.
        probabilities: float64 [P] of each stage.
    """

    streams: tuple[Stream, ...]
    starts: tuple[int, ...]
    probabilities: tuple[np.ndarray, ...]

    @staticmethod
    def of(
        dataset: Dataset, corpora: Sequence[Corpus], first: Mixture, stages: Sequence[Stage]
    ) -> "Curriculum":
        """The curriculum of a training run.

        Args:
            dataset: the main dataset.
            corpora: further corpora.
            first: the mixture before the first stage.
            stages: in order of steps.

        Raises:
            ValueError: a corpus does not fit the dataset; a stage names an unknown pair or corpus,
                or a pair without examples; or no pair has a probability above 0.
        """
        mixtures = {0: first} | {stage.from_step: _changed(first, stage) for stage in stages}
        streams = [*_streams(dataset), *_further(dataset, corpora)]
        found = [_probabilities(streams, dataset, one, step) for step, one in mixtures.items()]
        used = np.flatnonzero(np.any(found, axis=0))
        return Curriculum(
            tuple(streams[i] for i in used),
            tuple(mixtures),
            tuple(probabilities[used] for probabilities in found),
        )

    @property
    def examples(self) -> dict[str, int]:
        """Pair -> number of its examples in all corpora; only pairs that are drawn."""
        sizes: Counter[str] = Counter()
        for stream in self.streams:
            sizes[stream.pair.name] += stream.size
        return dict(sizes)

    def at(self, step: int) -> np.ndarray:
        """float64 [P], the probability of each stream after `step` steps."""
        return self.probabilities[int(np.searchsorted(self.starts, step, side="right")) - 1]

    def shares(self, steps: int) -> np.ndarray:
        """float64 [P], the share of each stream among the draws of `steps` (>= 1) steps."""
        lengths = np.diff(np.minimum([*self.starts, steps], steps))
        return np.average(self.probabilities, axis=0, weights=lengths)


def sampling_probabilities(sizes: list[int], temperature: float) -> np.ndarray:
    """float64 [P], p ∝ size^(1/T): T = 1 samples by size, large T evenly (Arivazhagan 2019)."""
    # Sizes relative to the largest, because the power of a size could overflow.
    weights = np.power(np.array(sizes, np.float64) / max(sizes), 1.0 / temperature)
    return weights / weights.sum()


def check_names(corpora: Sequence[Corpus], stages: Sequence[Stage]) -> None:
    """Checks the names of corpora, and the order of stages.

    Raises:
        ValueError: two corpora have the same name, stages are not in order of steps, or a stage
            names an unknown corpus.
    """
    names = [MAIN, *(corpus.name for corpus in corpora)]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(
            f"input.corpora must have different names, other than {MAIN!r}; used twice: {repeated}."
        )
    steps = [stage.from_step for stage in stages]
    if steps != sorted(set(steps)):
        raise ValueError(
            f"input.stages must be in order of from_step, each step once, got {steps}."
        )
    for stage in stages:
        if unknown := [name for name, _ in stage.weights if name not in names]:
            raise ValueError(
                f"input.stages: no corpus is named {unknown[0]!r}; give one of {names}."
            )


def identity(dataset: Dataset, corpora: Sequence[Corpus]) -> str:
    """SHA-256 of the dataset and the further corpora, in hexadecimal."""
    digests = [dataset.sha256, *(_load(corpus).sha256 for corpus in corpora)]
    return hashlib.sha256("".join(digests).encode()).hexdigest() if corpora else digests[0]


def _changed(first: Mixture, stage: Stage) -> Mixture:
    given = {name: getattr(stage, name) for name in ("pairs", "temperature", "pair_factors")}
    weights = first.weights | dict(stage.weights)
    return first._replace(**{n: v for n, v in given.items() if v is not None}, weights=weights)


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
        other = _load(corpus)
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


def _check_pairs(streams, dataset, mixture) -> None:
    """Raises ValueError if a named pair is unknown, or has no examples in any corpus."""
    named = [dataset.pair(name).name for name in mixture.pairs]
    present = {stream.pair.name for stream in streams}
    empty = [name for name in named if name not in present]
    if empty or not present:
        further = ", ".join(name for name in mixture.weights if name != MAIN)
        raise ValueError(
            f"There are no training examples for {', '.join(empty) or 'any pair'} in "
            f"{dataset.directory}{f' and in the corpora {further}' if further else ''}. Prepare "
            f"training text for them, or leave them out of input.pairs."
        )


def _load(corpus: Corpus) -> Dataset:
    try:
        return Dataset.load(Path(corpus.data))
    except ValueError as error:
        raise ValueError(
            f"Corpus {corpus.name}: {error} If it was moved, give its place in "
            f'--set="input.corpora=(Corpus(name={corpus.name!r},data=…),)".'
        ) from error


def _probabilities(streams, dataset, mixture, step) -> np.ndarray:
    """float64 [P]: the corpus is drawn by weight, its pair by size, temperature and factor."""
    where = f"input.stages from step {step}" if step else "input"
    _check_pairs(streams, dataset, mixture)
    patterns = [pattern for pattern, _ in mixture.pair_factors]
    check_found(patterns, [pair.name for pair in dataset.pairs], f"{where}.pair_factors")
    found = np.zeros(len(streams))
    for corpus, weight in mixture.weights.items():
        here = [
            i
            for i, one in enumerate(streams)
            if one.corpus == corpus and (one.pair.name in mixture.pairs or not mixture.pairs)
        ]
        if not here or not weight:
            continue
        factors = [first_match(mixture.pair_factors, streams[i].pair.name, 1.0) for i in here]
        sizes = [streams[i].size for i in here]
        found[here] = (
            weight * np.array(factors) * sampling_probabilities(sizes, mixture.temperature)
        )
    if not found.any():
        raise ValueError(
            f"{where}.pair_factors={mixture.pair_factors} with weights {mixture.weights} leaves "
            f"out all pairs; give one of them a factor and a weight above 0."
        )
    return found / found.sum()
