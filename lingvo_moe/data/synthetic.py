"""The synthetic corpus: small parallel text of twelve invented languages with English.

The corpus is for demonstrations and tests. A model learns it in minutes. As with real languages, a
language with few sentences gains from a related language with many. See `synthetic_languages` for
the languages, `synthetic_grammar` for the sentences and docs/start/demo.md for examples.

    SyntheticCorpus().write("corpus")     # corpus/train/qna-en.qna, corpus/train/qna-en.en, ...

The same parameters give the same bytes on every machine and every version of Python.
"""

import dataclasses
import math
import os
import random
from collections.abc import Collection
from pathlib import Path

from lingvo_moe.config.fields import NonNegativeInt, Params, PositiveInt
from lingvo_moe.data.dataset import SPLITS
from lingvo_moe.data.synthetic_grammar import (
    Sentence,
    english,
    invented_nouns,
    sample_sentence,
    with_nouns,
)
from lingvo_moe.data.synthetic_languages import LANGUAGES, get_language, translate
from lingvo_moe.system.files import new_directory

MAKER = "lingvo-moe-prepare --synthetic"

# Training sizes fall as (rank + _RANK_SHIFT) ** -a, the power law of Zipf and Mandelbrot. Without
# the shift the second and third language, which have the most text in their families, would have
# only a quarter and an eighth of the first.
_RANK_SHIFT = 10
_MOST_NOUNS = 100_000  # fewer than half of what invented_nouns can make


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticCorpus(Params):
    """The params of a synthetic corpus.

    Attributes:
        languages: codes of the source languages, the one with most training text first.
        largest: training pairs of the first language.
        smallest: training pairs of the last one; sizes between follow a power law.
        dev: development pairs of each language. All translate the same English.
        test: test pairs of each language. All translate the same English.
        zero_shot: pairs such as "qna-qka", of two of the languages, with development and test text
            but without training text.
        private_nouns: if not 0, this number of invented nouns replaces all nouns, and each language
            has its own word for each, unlike those of related languages. So a model has much to
            remember, and no language helps another with it. A small language lacks most of them.
        seed: of the sentences; the languages are the same for every seed.

    Raises ValueError: if a language is unknown, given twice or none is given, or a size is wrong.
    """

    languages: tuple[str, ...] = tuple(language.code for language in LANGUAGES)
    largest: PositiveInt = 20_000
    smallest: PositiveInt = 200
    dev: NonNegativeInt = 100
    test: NonNegativeInt = 100
    zero_shot: tuple[str, ...] = ()
    private_nouns: NonNegativeInt = 0
    seed: int = 0

    def __post_init__(self):
        super().__post_init__()
        known = {get_language(code).code for code in self.languages}
        if not known or len(known) < len(self.languages):
            raise ValueError(f"languages must be one or more different codes: {self.languages!r}.")
        for pair in self.zero_shot:
            if len(codes := set(pair.split("-"))) != 2 or codes - known:
                raise ValueError(f"zero_shot: {pair!r} is no pair of two of the languages.")
        if self.private_nouns > _MOST_NOUNS:
            raise ValueError(f"private_nouns={self.private_nouns} must be at most {_MOST_NOUNS}.")
        if self.smallest > self.largest:
            raise ValueError(f"smallest={self.smallest} must be at most largest={self.largest}.")

    def train_sizes(self) -> dict[str, int]:
        """Training pairs of each language code, largest first."""
        count = len(self.languages)
        if count == 1:
            return {self.languages[0]: self.largest}
        steps = [math.log((rank + _RANK_SHIFT) / (1 + _RANK_SHIFT)) for rank in range(1, count + 1)]
        exponent = math.log(self.largest / self.smallest) / steps[-1]
        sizes = (round(self.largest * math.exp(-exponent * step)) for step in steps)
        return dict(zip(self.languages, sizes, strict=True))

    def sentences(self, split: str, language: str) -> list[Sentence]:
        """Trees of one split of one language; their English is distinct.

        Development and test sentences are the same in every language, and occur in no
        training split.
        """
        held_out = self._sample(f"{self.seed}-held-out", self.dev + self.test)
        if split != "train":
            return held_out[: self.dev] if split == "dev" else held_out[self.dev :]
        exclude = {english(sentence) for sentence in held_out}
        return self._sample(f"{self.seed}-train-{language}", self.train_sizes()[language], exclude)

    def pairs(self, split: str, source: str, target: str = "en") -> list[tuple[str, str]]:
        """(source, target) of the sentences of one split of a source language."""
        sentences = self.sentences(split, source)
        return [(self._text(one, source), self._text(one, target)) for one in sentences]

    def write(self, directory: str | os.PathLike, overwrite: bool = False) -> None:
        """Writes SPLIT/SRC-en.SRC and SPLIT/SRC-en.en, one sentence a line, UTF-8. Raises
        ValueError: the directory holds other files, or a corpus and `overwrite` is False."""
        with new_directory(Path(directory), MAKER, overwrite) as partial:
            for split in SPLITS:
                (partial / split).mkdir()
                unseen = self.zero_shot if split != "train" else ()
                for pair in (*(f"{code}-en" for code in self.languages), *unseen):
                    sides = pair.split("-")
                    examples = self.pairs(split, *sides)
                    for i, side in enumerate(sides):
                        text = "".join(f"{example[i]}\n" for example in examples)
                        (partial / split / f"{pair}.{side}").write_bytes(text.encode())

    def _text(self, sentence: Sentence, code: str) -> str:
        if code == "en":
            return english(sentence)
        return translate(sentence, get_language(code), self.private_nouns)

    def _sample(self, seed: str, count: int, exclude: Collection[str] = ()) -> list[Sentence]:
        """Draws sentences whose English differs from each other's and from those excluded."""
        # Seeding with a string uses SHA-512, which is the same in every process, unlike hash().
        rng, nouns = random.Random(seed), invented_nouns(self.private_nouns)
        seen = set(exclude)
        sentences: list[Sentence] = []
        while len(sentences) < count:
            sentence = sample_sentence(rng)
            if nouns:
                sentence = with_nouns(sentence, lambda: nouns[int(rng.random() * len(nouns))])
            text = english(sentence)
            if text not in seen:
                seen.add(text)
                sentences.append(sentence)
        return sentences
