"""A request to the search, in token ids.  P length of a prefix, E edges of forbidden texts."""

import copy
import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_moe.config.fields import FROM_DATA, alternatives
from lingvo_moe.decoding.cache import Cache
from lingvo_moe.decoding.constraints import Edge, given
from lingvo_moe.decoding.fitted import FITTED, Fitted
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.decoding.sampling import Sampling
from lingvo_moe.nn.special_tokens import EOS


def _kinds(cls: type) -> dict[str, type[np.number]]:
    """Field -> the type of its tensor, for all fields that are numbers."""
    hints = {name: alternatives(hint) for name, hint in typing.get_type_hints(cls).items()}
    return {name: np.int32 for name, kinds in hints.items() if int in kinds} | {
        name: np.float32 for name, kinds in hints.items() if float in kinds
    }


_OF_SAMPLING = _kinds(Sampling)
# Fields that are inputs of an exported graph, so that one graph serves all requests.
_SEARCH_NUMBERS = _kinds(BeamSearchParams)
del _SEARCH_NUMBERS["batch_tokens"]
# Those that are inputs of any graph, so that other values need no new graph.
_NUMBERS = {
    name: _SEARCH_NUMBERS[name]
    for name in ("length_penalty", "length_ratio", "length_offset", "min_length")
}
OWN = -1  # as an option of an export: the number of the target language
# Fields that graphs do not use.
_OUTSIDE = ("forbidden", "source_prefix", "target_prefix", "batch_tokens")


@dataclasses.dataclass(frozen=True)
class Request:
    """The params of a search, with their texts as ids."""

    params: BeamSearchParams = BeamSearchParams()  # of the search; their texts are not used
    prefix: tuple[int, ...] = ()  # ids that every translation begins with
    forbidden: tuple[Edge, ...] = ()  # edges of `constraints.join_lattices`
    # whether params.sampling applies, if it is set; a tensor bool [] in an exported graph, which
    # serves all requests
    sampling: bool | tf.Tensor = True
    # whether translations begin after the tag of their language, which is given
    after_tag: bool = False
    spaces: tuple[int, ...] = ()  # ids of pieces that are only spaces; a translation has others too
    # length penalties to compare: translation n is the best one by penalty n, and length_penalty
    # and n_best have no effect. () for those of params.
    penalties: tuple[float, ...] = ()

    @property
    def count(self) -> int | tf.Tensor:
        """Number of translations."""
        return len(self.penalties) or self.params.n_best

    @property
    def samples(self) -> bool | tf.Tensor:
        """Whether to draw samples instead of searching."""
        return self.params.sampling is not None and self.sampling

    @property
    def in_order(self) -> bool | tf.Tensor:
        """Whether each hypothesis continues itself: a single one does, and samples do."""
        return (self.params.beam_size == 1) | self.samples

    @property
    def sharing(self) -> int | tf.Tensor:
        """Number of hypotheses that share a cache."""
        return self.params.cache.sharing(self.params.beam_size)

    def check_after_tag(self) -> None:
        """Checks the request for a model whose translations begin with the tag of their
        language. Raises ValueError: it has an option that is not supported there."""
        if given(self.prefix):
            raise ValueError(
                "decoding.target_prefix is not supported with language_tags=OnBothSides(); leave "
                "it out."
            )

    @property
    def graph(self) -> "Request":
        """The part that a graph depends on: equal for requests that differ only in their inputs."""
        params = _standard(self.params, (*_NUMBERS, *_OUTSIDE))
        anything = (Edge(0, 1, EOS),) if self.forbidden else ()
        prefix = (EOS,) if self.prefix else ()
        return dataclasses.replace(self, params=params, prefix=prefix, forbidden=anything)

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """The inputs of a graph: numbers by name and, if set, prefix [P] and forbidden [E, 3]."""
        found = _arrays(self.params.filled(), _NUMBERS)
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
        ids = {name: inputs[name] for name in ("prefix", "forbidden") if name in inputs}
        numbers = {name: one for name, one in inputs.items() if name not in ids}
        return _replaced(self.with_numbers(numbers), ids)

    def split_numbers(self) -> "tuple[Request, dict[str, np.ndarray]]":
        """A request that is the same for other numbers, and these, for `with_numbers` under XLA.

        XLA needs to know the sizes of tensors, so the longest lengths stay in the request.
        """
        names = {"length_penalty", "min_length"} | _OF_SAMPLING.keys()
        numbers = {name: one for name, one in self.inputs.items() if name in names}
        params = _standard(self.params, ("length_penalty", "min_length"))
        return dataclasses.replace(self, params=params), numbers

    def filled(self, fitted: Fitted) -> "Request":
        """The request with numbers for all languages where params are FROM_DATA."""
        return dataclasses.replace(self, params=self.params.filled(fitted))

    def with_numbers(self, numbers: Mapping[str, tf.Tensor]) -> "Request":
        """The request with tensors for some fields of params and sampling, inside a graph."""
        of_search = {name: one for name, one in numbers.items() if name not in _OF_SAMPLING}
        params = _replaced(self.params, of_search)
        if params.sampling:
            of_sampling = {name: numbers[name] for name in numbers.keys() - of_search.keys()}
            params = _replaced(params, {"sampling": _replaced(params.sampling, of_sampling)})
        return _replaced(self, {"params": params})

    @staticmethod
    def of_tensors(
        inputs: Mapping[str, tf.Tensor], cache: Cache, spaces: tuple[int, ...] = ()
    ) -> "Request":
        """A request whose options are tensors, for a graph that serves any request: those of
        `numbers_of` by name; forbidden int32 [E, 3] and prefix int32 [P], if there are any."""
        sampling = _replaced(Sampling(), {name: inputs[name] for name in _OF_SAMPLING})
        numbers = {name: inputs[name] for name in _SEARCH_NUMBERS}
        fixed = BeamSearchParams(tokens=True, cache=cache)
        params = _replaced(fixed, numbers | {"sampling": sampling})
        ids = {name: inputs[name] for name in ("prefix", "forbidden") if name in inputs}
        searches = {"params": params, "sampling": sampling.temperature > 0}
        return _replaced(Request(spaces=spaces), searches | ids)


def numbers_of(params: BeamSearchParams) -> dict[str, np.ndarray]:
    """The numeric fields of params and of params.sampling as arrays [], int32 or float32, for
    `Request.of_tensors`. `temperature` is 0 for beam search, and a field FROM_DATA is -1."""
    sampling = _arrays(params.sampling or Sampling(), _OF_SAMPLING)
    if params.sampling is None:
        sampling["temperature"] = np.float32(0.0)
    return _arrays(params, _SEARCH_NUMBERS) | sampling


def search_of(options: Mapping[str, Any]) -> BeamSearchParams:
    """Params from their values in an export, NumPy scalars and texts as bytes; the inverse of
    `numbers_of`. Raises ValueError: a value breaks a rule."""
    kinds = _SEARCH_NUMBERS | _OF_SAMPLING
    # float(str(x)): the float32 0.6 becomes 0.6 and not 0.6000000238.
    numbers: dict[str, Any] = {
        name: float(str(options[name])) if kind is np.float32 else int(options[name])
        for name, kind in kinds.items()
    }
    numbers |= {name: FROM_DATA for name in FITTED if numbers[name] == OWN}
    sampling = {name: numbers.pop(name) for name in _OF_SAMPLING}
    texts: dict[str, Any] = {
        name: options[name].decode()
        for name in ("source_prefix", "target_prefix")
        if name in options
    }
    return BeamSearchParams(
        **numbers, **texts, sampling=Sampling(**sampling) if sampling["temperature"] else None
    )


def _standard(params, names):
    """Params with the defaults of these fields and, if they sample, of those of sampling."""
    values = {name: getattr(type(params)(), name) for name in names}
    if sampling := getattr(params, "sampling", None):
        values["sampling"] = _standard(sampling, _OF_SAMPLING)
    return dataclasses.replace(params, **values)


def _arrays(params, kinds):
    values = {name: getattr(params, name) for name in kinds}
    return {
        name: np.array(OWN if values[name] is FROM_DATA else values[name], kind)
        for name, kind in kinds.items()
    }


def _replaced(params, values: Mapping[str, Any]):
    """A copy with these fields, of whatever type."""
    made = copy.copy(params)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
