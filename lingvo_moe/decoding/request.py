"""A request to the search, in token ids.  P length of a prefix, E edges of forbidden texts."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_moe.core.tokens import EOS
from lingvo_moe.decoding.constraints import Edge, given
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.decoding.shortlist import Shortlist

# Fields that are inputs of a graph, so that other values need no new graph.
_NUMBERS = {
    "length_penalty": np.float32,
    "length_ratio": np.float32,
    "length_offset": np.int32,
    "min_length": np.int32,
}
_OF_SAMPLING = {"temperature": np.float32, "seed": np.int32}
# Fields that graphs do not use.
_OUTSIDE = ("forbidden", "source_prefix", "target_prefix", "split_long", "batch_tokens")


@dataclasses.dataclass(frozen=True)
class Request:
    """The params of a search, with their texts as ids.

    Attributes:
        params: of the search; their texts are not used.
        prefix: ids that every translation begins with.
        forbidden: edges of `constraints.join_lattices`.
        shortlist: which tokens translations may have; None for all.
    """

    params: BeamSearchParams = BeamSearchParams()
    prefix: tuple[int, ...] = ()
    forbidden: tuple[Edge, ...] = ()
    shortlist: Shortlist | None = None

    @property
    def graph(self) -> "Request":
        """The part that a graph depends on: equal for requests that differ only in their inputs."""
        sampling = self.params.sampling
        params = dataclasses.replace(
            self.params,
            **_defaults(self.params, (*_NUMBERS, *_OUTSIDE)),
            sampling=sampling
            and dataclasses.replace(sampling, **_defaults(sampling, _OF_SAMPLING)),
        )
        anything = (Edge(0, 1, EOS),) if self.forbidden else ()
        return Request(params, (EOS,) if self.prefix else (), anything, self.shortlist)

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """The inputs of a graph: numbers by name and, if set, prefix [P] and forbidden [E, 3]."""
        found = _arrays(self.params, _NUMBERS)
        if sampling := self.params.sampling:
            found |= _arrays(sampling, _OF_SAMPLING)
        for name in ("prefix", "forbidden"):
            if getattr(self, name):
                found[name] = np.array(getattr(self, name), np.int32)
        return found

    @property
    def specs(self) -> dict[str, tf.TensorSpec]:
        """The specs of the graph's inputs, for any P and E."""
        return {
            name: tf.TensorSpec((None, *value.shape[1:]) if value.ndim else (), value.dtype, name)
            for name, value in self.inputs.items()
        }

    def with_inputs(self, inputs: Mapping[str, tf.Tensor]) -> "Request":
        """The request with tensors instead of numbers, inside a graph."""
        params = _replaced(self.params, {name: inputs[name] for name in _NUMBERS})
        if params.sampling:
            numbers = {name: inputs[name] for name in _OF_SAMPLING}
            params = _replaced(params, {"sampling": _replaced(params.sampling, numbers)})
        ids = {name: inputs[name] for name in ("prefix", "forbidden") if name in inputs}
        return _replaced(self, {"params": params, **ids})

    def renumbered(self, numbers: tf.Tensor) -> "Request":
        """The request inside a graph where id i has become numbers[i]."""
        ids: dict[str, Any] = {}
        if given(self.prefix):
            ids["prefix"] = tf.gather(numbers, self.prefix)
        if given(self.forbidden):
            edges = tf.convert_to_tensor(self.forbidden)
            ids["forbidden"] = tf.concat([edges[:, :2], tf.gather(numbers, edges[:, 2:])], axis=1)
        return _replaced(self, ids)


def _defaults(params, names):
    return {name: getattr(type(params)(), name) for name in names}


def _arrays(params, kinds):
    return {name: np.array(getattr(params, name), kind) for name, kind in kinds.items()}


def _replaced(params, values: Mapping[str, Any]):
    """A copy with these fields, of whatever type."""
    made = copy.copy(params)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
