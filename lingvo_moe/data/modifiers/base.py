"""Modifiers change some training examples when they are drawn.

A change depends on the seed, the epoch and the example. So a resumed run makes the same changes,
and every epoch makes other changes.
"""

import abc
import dataclasses
import operator
import random
from collections.abc import Callable
from typing import Literal, NamedTuple

from lingvo_moe.core.fields import Params, Share
from lingvo_moe.core.results import a_text, returns
from lingvo_moe.data.vocabulary import Vocabulary


class Body(NamedTuple):
    """The tokens of an example without tags and EOS: lists of ids."""

    source: list[int]
    target: list[int]


class ModifierContext(NamedTuple):
    """What a modifier can use.

    Attributes:
        vocabularies: those of source and target.
        following: k -> the k-th example after this one in the text of the pair; None after the end.
        random: the random numbers for this example.
    """

    vocabularies: tuple[Vocabulary, Vocabulary]
    following: Callable[[int], Body | None]
    random: random.Random


def _are_ids(ids, vocabulary):
    return all(0 <= operator.index(n) < vocabulary.size for n in ids)


def _both(body, modifier, before, context):
    del modifier, before
    sides = zip(body, context.vocabularies, strict=True)
    return body if all(_are_ids(*side) for side in sides) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Modifier(Params, abc.ABC):
    """A policy: changes examples.

    A change is not made if the example would not fit a row or a side would be empty.

    Attributes:
        share: the share of examples to change, drawn at random.
    """

    share: Share = 0.1

    @returns("a Body of ids in the vocabularies", _both)
    @abc.abstractmethod
    def apply(self, body: Body, context: ModifierContext) -> Body:
        """The changed example."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfSides(Modifier):
    """Changes the source, or each side separately.

    Attributes:
        sides: "source" or "both".
    """

    sides: Literal["source", "both"] = "source"

    @returns(
        "ids in the vocabulary",
        lambda ids, modifier, before, vocabulary, _: ids if _are_ids(ids, vocabulary) else None,
    )
    @abc.abstractmethod
    def change(self, ids: list[int], vocabulary: Vocabulary, rng: random.Random) -> list[int]:
        """The changed ids of one side."""

    def apply(self, body: Body, context: ModifierContext) -> Body:
        """See Modifier."""
        changed = 1 if self.sides == "source" else 2
        pairs = list(zip(body, context.vocabularies, strict=True))[:changed]
        sides = (self.change(ids, vocabulary, context.random) for ids, vocabulary in pairs)
        return Body(*sides, *body[changed:])


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfText(OfSides):
    """Changes texts: a side is decoded, changed and encoded again."""

    @returns("a text", a_text)
    @abc.abstractmethod
    def change_text(self, text: str, rng: random.Random) -> str:
        """The changed text; if it equals `text`, the side keeps its ids.

        Args:
            text: one side of an example, without tags.
            rng: the random numbers for this example.
        """

    def change(self, ids: list[int], vocabulary: Vocabulary, rng: random.Random) -> list[int]:
        """See OfSides."""
        (text,) = vocabulary.decode([ids])
        changed = self.change_text(text, rng)
        return ids if changed == text else vocabulary.encode([changed])[0]
