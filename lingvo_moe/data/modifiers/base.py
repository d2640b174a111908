"""Modifiers change some training examples when they are drawn.

A change depends on the seed, the epoch and the example. So a resumed run makes the same changes,
and every epoch makes other changes.
"""

import abc
import dataclasses
import random
from collections.abc import Callable
from typing import NamedTuple

from lingvo_moe.config.fields import Params, Share
from lingvo_moe.data.vocabulary import Vocabulary


class Body(NamedTuple):
    """The tokens of an example without tags and EOS: lists of ids."""

    source: list[int]
    target: list[int]


class ModifierContext(NamedTuple):
    """What a modifier can use."""

    vocabularies: tuple[Vocabulary, Vocabulary]  # those of source and target
    # k -> the k-th example after this one in the text of the pair; None after the end
    following: Callable[[int], Body | None]
    random: random.Random  # the random numbers for this example


@dataclasses.dataclass(frozen=True, kw_only=True)
class Modifier(Params, abc.ABC):
    """A policy: changes examples.

    A change is not made if the example would not fit a row or a side would be empty.

    Attributes:
        share: the share of examples to change, drawn at random.
    """

    share: Share = 0.1

    @abc.abstractmethod
    def apply(self, body: Body, context: ModifierContext) -> Body:
        """The changed example."""
