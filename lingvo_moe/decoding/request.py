"""A request to the search, in token ids.  P length of a prefix."""

import copy
import dataclasses
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_moe.config.fields import FROM_DATA, alternatives
from lingvo_moe.decoding.constraints import given
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
_OF_SEARCH = _kinds(BeamSearchParams)
del _OF_SEARCH["batch_tokens"], _OF_SEARCH["separate_caches_from"]
# Those that are inputs of any graph, so that other values need no new graph; the second ones are
# sizes, which XLA needs to know.
_INPUTS = ("length_penalty", "expected_ratio", "min_length")
_SIZES = ("length_ratio", "length_offset")
OWN = -1  # as an option of an export: the number of the target language
# Fields that graphs do not use.
_OUTSIDE = ("source_prefix", "target_prefix", "batch_tokens")


@dataclasses.dataclass(frozen=True)
class Request:
    """The params of a search, with their texts as ids."""

    params: BeamSearchParams = BeamSearchParams()  # of the search; their texts are not used
    prefix: tuple[int, ...] = ()  # ids that every translation begins with
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
        """Number of hypotheses that share a cache: all, in a graph for any beam size."""
        beams, least = self.params.beam_size, self.params.separate_caches_from
        return beams if tf.is_tensor(beams) or beams < least else 1

    def check_after_tag(self) -> None:
        """Checks the request for a model whose translations begin with the tag of their
        language. Raises ValueError: it has an option that is not supported there."""
        if given(self.prefix):
            raise ValueError(
                "decoding.target_prefix is not supported with language_tags=OnBothSides(); leave "
                "it out."
            )

    def split(self, static: bool = False) -> "tuple[Request, dict[str, np.ndarray]]":
        """The part that a graph depends on, equal for requests that differ only in the graph's
        inputs; and these, for `with_inputs`: numbers [] by name and, if set, `prefix` [P]. If
        `static`, all sizes stay in the request, as XLA needs."""
        names = _INPUTS if static else (*_INPUTS, *_SIZES)
        inputs = _arrays(self.params.filled(), names)
        if sampling := self.params.sampling:
            inputs |= _arrays(sampling, _OF_SAMPLING)
        prefix = self.prefix
        if prefix and not static:
            inputs["prefix"] = np.array(prefix, np.int32)
            prefix = (EOS,)
        params = _standard(self.params, (*names, *_OUTSIDE))
        return dataclasses.replace(self, params=params, prefix=prefix), inputs

    def with_inputs(self, inputs: Mapping[str, tf.Tensor]) -> "Request":
        """The request with tensors for some fields of params and sampling, and for the prefix,
        inside a graph; other inputs are ignored."""
        params = _replaced(self.params, inputs, _OF_SEARCH)
        if params.sampling:
            sampling = _replaced(params.sampling, inputs, _OF_SAMPLING)
            params = _replaced(params, {"sampling": sampling})
        return _replaced(_replaced(self, inputs, ["prefix"]), {"params": params})

    @staticmethod
    def of_tensors(inputs: Mapping[str, tf.Tensor], spaces: tuple[int, ...] = ()) -> "Request":
        """A request whose options are tensors, for a graph that serves any request: those of
        `numbers_of` by name, and prefix int32 [P], if there is one."""
        any_search = BeamSearchParams(tokens=True, sampling=Sampling())
        request = Request(any_search, spaces=spaces).with_inputs(inputs)
        return _replaced(request, {"sampling": inputs["temperature"] > 0})


def numbers_of(params: BeamSearchParams) -> dict[str, np.ndarray]:
    """The numeric fields of params and of params.sampling as arrays [], int32 or float32, for
    `Request.of_tensors`. `temperature` is 0 for beam search, and a field FROM_DATA is -1."""
    sampling = _arrays(params.sampling or Sampling(), _OF_SAMPLING)
    if params.sampling is None:
        sampling["temperature"] = np.float32(0.0)
    return _arrays(params, _OF_SEARCH) | sampling


def _standard(params, names):
    """Params with the defaults of these fields and, if they sample, of those of sampling."""
    values = {name: getattr(type(params)(), name) for name in names}
    if sampling := getattr(params, "sampling", None):
        values["sampling"] = _standard(sampling, _OF_SAMPLING)
    return dataclasses.replace(params, **values)


def _arrays(params, names):
    values = {name: getattr(params, name) for name in names}
    kinds = _OF_SEARCH | _OF_SAMPLING
    return {
        name: np.array(OWN if value is FROM_DATA else value, kinds[name])
        for name, value in values.items()
    }


def _replaced(params, values: Mapping[str, Any], names: Iterable[str] | None = None):
    """A copy with these fields, or those of some names, of whatever type."""
    made = copy.copy(params)
    for name in values if names is None else values.keys() & set(names):
        object.__setattr__(made, name, values[name])
    return made
