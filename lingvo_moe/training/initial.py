"""Initial weights from another model.

Weights are found by their paths, such as "encoder/layer_03/feed_forward/wi". The layers of a scan
are handled one by one, so a model with a scan can start from one without, and the reverse.

E experts, Y equal blocks of layers.
"""

import abc
import dataclasses
import difflib
import functools
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_moe.core.fields import NonNegativeFloat, Params, PositiveInt
from lingvo_moe.core.layer import Normal, WeightSpec, init_theta, layer_names
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.core.patterns import Pattern, check_found
from lingvo_moe.reporting.table import Table
from lingvo_moe.training.lazy import Copies, Lazy, Slice, Stacked
from lingvo_moe.training.optimizer import EMA

KEPT = "copied"
_THETA, _SLOTS = "theta/", "slots/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitParams(Params):
    """The source of the initial weights; it is not read again when training resumes.

    Attributes:
        logdir: its logdir, or an export with weights; "" to draw all weights.
        step: of its checkpoint; None for the best.
        rename: (pattern, replacement), …: replacements, as of re.sub, that are made in a weight's
            path, one after the other, to find it in the other model.
        redraw: patterns of the paths of weights that are drawn although the other model has them.
        expert_noise: normal noise of experts that are copies of one network; its standard deviation
            is this share of the weight's.
        relatives: (language, known language), …: the tag and the tasks of a new language start as
            those of the known one. Other new tags start as the mean of all tags; other new tasks
            are drawn.
        optimizer_state: whether to copy also the number of steps and the optimizer's slots of
            copied weights. A moving average without a copy starts as its weight, other slots at 0.
    """

    logdir: str = ""
    step: PositiveInt | None = None
    rename: tuple[tuple[Pattern, str], ...] = ()
    redraw: tuple[Pattern, ...] = ()
    expert_noise: NonNegativeFloat = 0.0
    relatives: tuple[tuple[str, str], ...] = ()
    optimizer_state: bool = False

    def check_effect(self) -> None:
        """Checks that without a logdir nothing else is set.

        Raises:
            ValueError: another field is set, which has no effect without a logdir.
        """
        unset = InitParams()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not self.logdir and value != getattr(unset, field.name):
                raise ValueError(
                    f"init.{field.name}={value!r} has an effect only on weights from another "
                    f"model: pass --init_from (init.logdir), or leave it out."
                )


class InitialValue(NamedTuple):
    """The initial value of a weight.

    Attributes:
        how: a description; KEPT for an exact copy.
        tensor: its values, sliced when they are needed.
        path: of its source in the other model.
    """

    how: str
    tensor: Any
    path: str


class Transfer(abc.ABC):
    """A policy that makes a weight from weights of another model."""

    @abc.abstractmethod
    def origin(
        self, path: str, there: str, spec: WeightSpec, tensors: Mapping[str, Any]
    ) -> InitialValue | None:
        """The initial value of the weight, of any shape; None if the policy does not apply.

        Args:
            path: of the weight.
            there: its path in the other model.
            spec: of the weight.
            tensors: the other model's weights by path.
        """


class Keep(Transfer):
    """Copies the weight with the same path."""

    def origin(self, path, there, spec, tensors):
        return InitialValue(KEPT, tensors[there], there) if there in tensors else None


@dataclasses.dataclass(frozen=True)
class Upcycle(Transfer):
    """Copies the dense network at the same position to all experts (Komatsuzaki et al. 2023).

    Sparse Upcycling, arXiv 2212.05055, section 3. The router is drawn. If the weights of a token's
    experts sum to 1 and no choice is dropped, the model equals the dense one.

    Attributes:
        noise: see InitParams.expert_noise.
        seed: of the noise.
        shared: whether a network that all tokens use (MoEParams.shared_expert) is a copy too.
    """

    noise: float
    seed: int
    shared: bool = False

    def origin(self, path, there, spec, tensors):
        if self.shared and (dense := there.replace("/shared/", "/")) != there:
            copied = there not in tensors and dense in tensors
            return InitialValue(f"a copy of {dense}", tensors[dense], dense) if copied else None
        dense, axis = there.replace("/experts/", "/"), spec.dims.find("E")
        if axis < 0 or there in tensors or dense not in tensors:
            return None
        stored, count = tensors[dense], spec.shape[axis]
        noise = self._noise_of(path, stored) if self.noise else None
        copies = Copies(stored, axis, count, noise)
        return InitialValue(f"{count} copies of {dense}", copies, dense)

    def _noise_of(self, path, stored):
        @functools.cache
        def stddev():
            return self.noise * float(np.asarray(stored).std())

        def noise(copy):
            key = zlib.crc32(f"{path}/{copy}".encode()) & 0x7FFFFFFF
            return Normal(stddev())(tuple(stored.shape), tf.stack([self.seed, key])).numpy()

        return noise


class Drawn(Lazy):
    """A weight drawn at random, for parts without another source."""

    def __init__(self, path: str, spec: WeightSpec, seed: int):
        self._weight, self._seed = NestedMap.unflatten({path: spec}), seed
        self.shape = spec.shape

    def read(self, index):
        return self._whole[index]

    @functools.cached_property
    def _whole(self):
        ((_, value),) = init_theta(self._weight, self._seed).flatten()
        return value.numpy()


class InitialState(NamedTuple):
    """The initial state of training and its sources.

    Attributes:
        tensors: of the state, by name; other weights are drawn.
        table: a row for each kind of weight.
    """

    tensors: dict[str, Any]
    table: Table


def initial_state(
    params: InitParams,
    transfers: Sequence[Transfer],
    weights: NestedMap,
    slots: NestedMap,
    tensors: Mapping[str, Any],
    seed: int,
) -> InitialState:
    """Finds the initial value of each weight of a model.

    Args:
        params: with a logdir.
        transfers: policies; the first that applies to a weight is used.
        weights: WeightSpecs of the model.
        slots: those of its optimizer.
        tensors: the other model's state, by name.
        seed: of drawn weights.

    Raises:
        ValueError: a pattern matches no path, a weight has a shape that no transfer gives, the
            other model has none of the weights or of those that a pattern of init.rename matches,
            or there are no copies for init.expert_noise.
    """
    specs = dict(weights.flatten())
    paths = _by_layer(specs, _spec_of_layer)
    names = [path for layers in paths.values() for path, _ in layers]
    check_found([pattern for pattern, _ in params.rename], names, "init.rename")
    check_found(params.redraw, names, "init.redraw")
    stored = {n.removeprefix(_THETA): t for n, t in tensors.items() if n.startswith(_THETA)}
    theirs = dict(layer for layers in _by_layer(stored, Slice).values() for layer in layers)

    found: dict[str, tuple[WeightSpec, InitialValue | None]] = {}
    taken: dict[str, Any] = {}
    for path, layers in paths.items():
        origins = [_origin(params, transfers, *layer, theirs) for layer in layers]
        found |= {name: (spec, o) for (name, spec), o in zip(layers, origins, strict=True)}
        if any(origins):
            drawn = Drawn(path, specs[path], seed)
            parts = [o.tensor if o else Slice(drawn, y) for y, o in enumerate(origins)]
            taken[path] = parts[0] if layers[0][0] == path else Stacked(parts)
    if not taken:
        raise ValueError(
            f"{params.logdir} has none of this model's weights, such as {names[0]!r}; it has "
            f"{', '.join(sorted(theirs)[:3])}. Start from another model, or set init.rename."
        )
    _check_renamed(params, found, theirs)
    copies = any(o is not None and isinstance(o.tensor, Copies) for _, o in found.values())
    if params.expert_noise and not copies:
        raise ValueError(
            f"init.expert_noise={params.expert_noise} has an effect only on experts that are copies"
            f" of a dense layer, and this model has none. Leave it out."
        )
    state = {_THETA + path: tensor for path, tensor in taken.items()}
    if not params.optimizer_state:
        return InitialState(state, _table(found, theirs, 0))
    copied = _optimizer_state(params, slots, tensors, paths, found)
    for path, _ in slots.flatten():
        weight, _, slot = path.rpartition("/")
        if slot == EMA and _SLOTS + path not in copied:  # after so many steps it would stay near 0
            drawn = Drawn(weight, specs[weight], seed)
            state[_SLOTS + path] = taken.get(weight, drawn)
    return InitialState(state | copied, _table(found, theirs, len(copied)))


def _origin(params, transfers, path, spec, theirs) -> InitialValue | None:
    """The initial value of one weight; None if it is drawn."""
    there = _renamed(params, path)
    if any(re.search(pattern, path) for pattern in params.redraw):
        return None
    for transfer in transfers:
        if origin := transfer.origin(path, there, spec, theirs):
            if tuple(origin.tensor.shape) != spec.shape:
                raise ValueError(_misfit(path, spec, origin, params.logdir))
            return origin
    return None


def _renamed(params, path):
    """The path in the other model."""
    for pattern, replacement in params.rename:
        try:
            path = re.sub(pattern, replacement, path)
        except (re.error, IndexError) as error:
            raise ValueError(
                f"init.rename: {replacement!r} cannot replace {pattern!r} ({error}); correct it."
            ) from error
    return path


def _check_renamed(params, found, theirs):
    """Raises ValueError if no name that a pattern of init.rename makes is in the other model."""
    for pattern, _ in params.rename:
        matched = [path for path in found if re.search(pattern, path)]
        if not any(found[path][1] for path in matched):
            there = _renamed(params, matched[0])
            near = difflib.get_close_matches(there, theirs, n=1, cutoff=0.0)
            raise ValueError(
                f"init.rename: {pattern!r} changes {matched[0]!r} to {there!r}. Neither this "
                f"name nor another one that it makes is in {params.logdir}; the most similar "
                f"name there is {near[0]!r}. Correct the replacement."
            )


def _misfit(path: str, spec: WeightSpec, origin: InitialValue, logdir: str) -> str:
    """The rule and the cure for a weight of another shape."""
    shape = tuple(origin.tensor.shape)
    text = f"Weight {path} is {spec.shape}, but from {origin.path} in {logdir} it would be {shape}."
    axis = max(spec.dims.find(letter) for letter in "Ee")
    if axis >= 0 and _without(shape, axis) == _without(spec.shape, axis):
        of_decoder = f" (if the encoder has another number, decoder_num_experts={shape[axis]})"
        of_decoder = of_decoder if path.startswith("decoder/") else ""
        return (
            f"{text} Experts are copied only if their number is equal: set "
            f"model.moe.num_experts={shape[axis]}"
            f"{of_decoder}, or draw experts and routers: "
            f"--set=\"init.redraw=('experts/','/gat')\"."
        )
    return (
        f"{text} Give the model the same sizes, or draw the weight: "
        f"--set=\"init.redraw=('{path}',)\"."
    )


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _optimizer_state(params, slots, tensors, paths, found):
    """The slots of copied weights, and the step."""

    def is_kept(name):
        origin = found[name][1]
        return origin is not None and origin.how == KEPT and origin.path == name

    state = {}
    for path, spec in slots.flatten():
        layers, name = paths[path.rpartition("/")[0]], _SLOTS + path
        fits = name in tensors and tuple(tensors[name].shape) == spec.shape
        if fits and all(is_kept(layer) for layer, _ in layers):
            state[name] = tensors[name]
    if not state:
        raise ValueError(
            f"{params.logdir} has no optimizer state of these weights (an export has none); set "
            f"init.optimizer_state=False."
        )
    return state | {"step": tensors["step"]}


def _table(found, theirs, slots) -> Table:
    """A row for each kind of weight: equal paths except for the number of the layer."""
    used = {origin.path for _, origin in found.values() if origin is not None}
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for path, (spec, origin) in found.items():
        how = origin.how if origin else "drawn"
        rows[_kind(path), _kind(how)].append(spec.size)
    left: dict[str, list[int]] = defaultdict(list)
    for path in sorted(set(theirs) - used):
        left[_kind(path)].append(int(np.prod(theirs[path].shape)))
    more = [(kind, *_counts(sizes), "left out") for kind, sizes in left.items()]
    if slots:
        more.append(("optimizer state and step", str(slots), "", KEPT))
    lines = [(kind, *_counts(sizes), how) for (kind, how), sizes in rows.items()]
    return Table(("weight", "tensors", "numbers", "starts"), lines, more)


def _counts(sizes):
    return str(len(sizes)), f"{sum(sizes):,}"


def _kind(text: str) -> str:
    return re.sub(r"layer_\d+", "layer_*", text)


def _by_layer(
    leaves: Mapping[str, Any], of_layer: Callable[[Any, int], Any]
) -> dict[str, list[tuple[str, Any]]]:
    """Path -> itself with its leaf, or those of each layer for "encoder/block/…" of a scan.

    Args:
        leaves: with a shape, by path.
        of_layer: (leaf, y) -> the leaf of the y-th block.
    """
    places: dict[str, list[str]] = defaultdict(list)
    for side, block, place in {tuple(p.split("/")[:3]) for p in leaves if p.count("/") > 1}:
        if block == "block":
            places[side] = sorted([*places[side], place])

    def layers(path, leaf):
        side, block, *rest = path.split("/")
        if block != "block" or side not in places:
            return [(path, leaf)]
        size, first = len(places[side]), places[side].index(rest[0])
        names = list(layer_names(leaf.shape[0] * size))
        return [
            ("/".join([side, name, *rest[1:]]), of_layer(leaf, y))
            for y, name in enumerate(names[first::size])
        ]

    return {path: layers(path, leaf) for path, leaf in leaves.items()}


def _spec_of_layer(spec: WeightSpec, y: int) -> WeightSpec:
    del y
    return dataclasses.replace(spec, shape=spec.shape[1:], dims=spec.dims[1:])
