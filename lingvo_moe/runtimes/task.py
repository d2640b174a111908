"""The interface between a runtime and its model."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, Self

import numpy as np
import tensorflow as tf

from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.training.step import Trainable

NOTHING: Mapping[str, Any] = MappingProxyType({})


class SearchRequest(Protocol):
    """How to decode a batch; as decoding.request.Request."""

    def __hash__(self) -> int: ...

    def split(self, static: bool = False) -> tuple[Self, dict[str, np.ndarray]]:
        """What a graph depends on, hashable, and its inputs; if `static`, these change no size."""

    def with_inputs(self, inputs: Mapping[str, tf.Tensor]) -> Self:
        """The request inside a graph with these inputs."""


class Task(Trainable, Protocol):
    """A model that is trained and translates; arguments as of tasks.translation.TranslationTask."""

    def for_xla(self, groups: int) -> "Task":
        """The task with static shapes in evaluation and decoding too, for XLA."""

    def translate(self, theta: NestedMap, *args: Any, **kwargs: Any) -> Any:
        """The best translations of a batch, by a search as requested."""

    def lay_out(self, theta: NestedMap) -> NestedMap:
        """The weights rearranged for `decode`."""

    def decode(self, laid_out: NestedMap, *args: Any, **kwargs: Any) -> Any:
        """`translate`, with weights from `lay_out`."""

    def score(self, theta: NestedMap, *args: Any, **kwargs: Any) -> tf.Tensor:
        """float32 [B, T]: log-probabilities of given translations."""

    def routes(self, theta: NestedMap, *given: tf.Tensor) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """The experts of each token; same arguments as `score`."""


LEAST_LENGTH = 16  # of a compiled program: shorter texts are padded


def next_size(size: int, least: int) -> int:
    """The smallest of least, 2·least, 4·least, … that is at least size."""
    while least < size:
        least *= 2
    return least
