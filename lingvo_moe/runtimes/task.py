"""The interface between a runtime and its model."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import tensorflow as tf

from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.training.step import Trainable

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Task(Trainable, Protocol):
    """A model that is trained and translates; shapes as in tasks.translation.TranslationTask."""

    def for_xla(self, groups: int) -> "Task":
        """The task with static shapes in evaluation and decoding too, for XLA."""

    def translate(
        self,
        theta: NestedMap,
        source_ids: tf.Tensor,
        lengths: tf.Tensor,
        tasks: tf.Tensor | None = None,
        decoding: Any = None,
    ) -> Any:
        """The best translations of a batch, by the search params `decoding`."""

    def lay_out(self, theta: NestedMap) -> NestedMap:
        """The weights rearranged for `decode`."""

    def decode(
        self,
        laid_out: NestedMap,
        source_ids: tf.Tensor,
        lengths: tf.Tensor,
        tasks: tf.Tensor | None = None,
        decoding: Any = None,
    ) -> Any:
        """`translate`, with weights from `lay_out`."""

    def score(
        self,
        theta: NestedMap,
        source_ids: tf.Tensor,
        source_lengths: tf.Tensor,
        target_ids: tf.Tensor,
        target_lengths: tf.Tensor,
        tasks: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """float32 [B, T]: log-probabilities of given translations."""

    def routes(self, theta: NestedMap, *given: tf.Tensor) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """The experts of each token; same arguments as `score`."""
