"""The initial weights of a translation model: drawn, or from another model.

Weights are found by their paths, such as "encoder/layer_03/feed_forward/wi". The layers of a scan
are handled one by one, so a model with a scan can start from one without, and the reverse.

V vocabulary, M model, E experts, J tasks, Y equal blocks of layers.
"""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lingvo_moe.config.patterns import check_found
from lingvo_moe.data.dataset import SIDES
from lingvo_moe.data.extension import find_parents
from lingvo_moe.moe.dispatch import Gather
from lingvo_moe.moe.shared import Gated
from lingvo_moe.nn.layer import WeightSpec, layer_names
from lingvo_moe.reporting.table import Table
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.param_changes import function_changes
from lingvo_moe.training.lazy import copies, drawn, from_rows, layer_of, stack
from lingvo_moe.training.process import Process
from lingvo_moe.training.replicas import experts_once

KEPT = "copied"
_THETA = "theta/"


def initialize(
    model_dir: ModelDir, runtime: Any, process: Process, report: Callable[[str], None]
) -> str:
    """Initializes the weights of a runtime by params.init.

    Args:
        model_dir: of the model.
        runtime: to be initialized.
        process: this process; all of them take the same checkpoint.
        report: takes lines.

    Returns:
        A table of the sources of weights; "" if all are drawn.

    Raises:
        ValueError: there is no such model or checkpoint, it has none of the weights, or a weight
            has another shape there; a pattern or a relative is unknown.
        OSError: the checkpoint is damaged.
    """
    params = model_dir.params
    if not params.init.logdir:
        runtime.initialize(params.train.seed)
        return ""
    old = ModelDir.open(Path(params.init.logdir))
    _check_relatives(model_dir, old)
    tables: list[Table] = []

    def use(checkpoint):
        origins = _Origins(model_dir, old, checkpoint.tensors)
        runtime.initialize(params.train.seed, origins.state())
        tables.append(origins.table())

    step = old.read_checkpoint(params.init.step, use).step
    if not process.all_have(step):
        raise ValueError(
            f"Processes found different checkpoints in {old.path}; pass --set=init.step={step}."
        )
    text = f"Initial weights, from step {step} of {old.path}:\n{tables[-1].to_text()}\n"
    if changes := function_changes(old.params, params):
        both = (f"{path}={now} (before {was})" for path, (was, now) in changes.items())
        text += f"The models differ in: {', '.join(both)}.\n"
    report(text.rstrip())
    return text


def _check_relatives(new: ModelDir, old: ModelDir) -> None:
    for pair in new.params.init.relatives:
        for language, model_dir in zip(pair, (new, old), strict=True):
            tags = (tag for side in SIDES for tag in model_dir.vocabulary(side).tags)
            known = {*tags, *(part for name in model_dir.pairs for part in name.split("-"))}
            if language not in known:
                raise ValueError(
                    f"init.relatives={pair}: {language!r} is no language of {model_dir.path}; it "
                    f"has {', '.join(sorted(known))}."
                )


class _Origin(NamedTuple):
    """Where a weight comes from.

    Attributes:
        how: a description; KEPT for an exact copy.
        tensor: its values, sliced when they are needed.
        path: of its source in the other model.
    """

    how: str
    tensor: Any
    path: str


class _Origins:
    """The origins of all weights of a model; those without one are drawn.

    Attributes:
        found: path -> spec and origin, of each layer of a scan.
    """

    def __init__(self, new: ModelDir, old: ModelDir, tensors: Mapping[str, Any]):
        self._new, self._old, self._init = new, old, new.params.init
        self._seed, task = new.params.train.seed, new.task
        if task.vexperts:
            task = task.with_moe(training=Gather())  # the runtime puts experts into slots
        self._specs = dict(task.weights().flatten())
        self._layers = _by_layer(self._specs, _spec_of_layer)
        names = [path for layers in self._layers.values() for path, _ in layers]
        check_found(self._init.redraw, names, "init.redraw")
        once = experts_once(tensors)
        stored = {n.removeprefix(_THETA): t for n, t in once.items() if n.startswith(_THETA)}
        self._theirs = dict(x for layers in _by_layer(stored, layer_of).values() for x in layers)
        self.found: dict[str, tuple[WeightSpec, _Origin | None]] = {
            path: (spec, self._origin(path, spec))
            for layers in self._layers.values()
            for path, spec in layers
        }
        if not any(origin for _, origin in self.found.values()):
            raise ValueError(
                f"{old.path} has none of this model's weights, such as {names[0]!r}; it has "
                f"{', '.join(sorted(self._theirs)[:3])}. Start from another model."
            )

    def state(self) -> dict[str, Any]:
        """The tensors of the runtime's state that are not drawn, by name."""
        state = {}
        for path, layers in self._layers.items():
            origins = [self.found[name][1] for name, _ in layers]
            if any(origins):
                new = drawn(path, self._specs[path], self._seed)
                parts = [o.tensor if o else layer_of(new, y) for y, o in enumerate(origins)]
                state[_THETA + path] = parts[0] if layers[0][0] == path else stack(parts)
        return state

    def table(self) -> Table:
        """A row for each kind of weight: equal paths except for the number of the layer."""
        used = {origin.path for _, origin in self.found.values() if origin}
        every = [
            (path, origin.how if origin else "drawn", spec.shape)
            for path, (spec, origin) in self.found.items()
        ]
        left = sorted(set(self._theirs) - used)
        every += [(path, "left out", self._theirs[path].shape) for path in left]
        sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
        for path, how, shape in every:
            sizes[_kind(path), _kind(how)].append(math.prod(shape))
        rows = [(kind, str(len(n)), f"{sum(n):,}", how) for (kind, how), n in sizes.items()]
        return Table(("weight", "tensors", "numbers", "starts"), rows)

    def _origin(self, path, spec) -> _Origin | None:
        """The origin of one weight; None if it is drawn."""
        if any(re.search(pattern, path) for pattern in self._init.redraw):
            return None
        for find in (self._rows, self._same, self._dense):
            if origin := find(path, spec):
                if tuple(origin.tensor.shape) != spec.shape:
                    raise ValueError(_misfit(path, spec, origin))
                return origin
        return None

    def _same(self, path, spec):
        return _Origin(KEPT, self._theirs[path], path) if path in self._theirs else None

    def _rows(self, path, spec):
        """A table whose rows have a meaning, by which they are copied to new positions.

        The rows [V, M] of an embedding are copied by piece, those [J, …] of a router by task.
        """
        parents_of = {"V": self._vocabulary_rows, "J": self._task_rows}.get(spec.dims[:1])
        if parents_of is None or path not in self._theirs:
            return None
        stored = self._theirs[path]
        parents = parents_of(path, spec.shape[0], stored.shape[0])
        if parents == [(i,) for i in range(stored.shape[0])]:
            return _Origin(KEPT, stored, path)
        rows = from_rows(stored, parents, drawn(path, spec, self._seed))
        return _Origin(_describe(parents), rows, path)

    def _vocabulary_rows(self, path, rows, old_rows) -> list[tuple[int, ...]]:
        """For each row the old rows whose mean it is, see `find_parents`; () to draw it.

        Rows without a piece keep their positions.
        """
        side = "source" if path.startswith("encoder/") else "target"
        new, old = (model_dir.vocabulary(side) for model_dir in (self._new, self._old))
        known: list[tuple[int, ...]] = [(i,) for i in range(new.size)]
        if new.sha256 != old.sha256:
            known = find_parents(new, old, dict(self._init.relatives) if old.tags else {})
        return known + [(i,) if old.size <= i < old_rows else () for i in range(new.size, rows)]

    def _task_rows(self, path, rows, old_rows) -> list[tuple[int, ...]]:
        """As `_vocabulary_rows`, by task; spare rows are drawn."""
        del path, old_rows
        new, old = self._new.task.task_router, self._old.task.task_router
        assert new, "only a router by task has such rows"
        assert old, "its table is found there"
        if new.task != old.task:
            raise ValueError(
                f"The router routes by the {new.task}, that of init.logdir by the {old.task}. Draw "
                f"the new table at random: --set=\"init.redraw=('/task_gate$',)\"."
            )
        of, before = self._new.task.pairs, self._old.task.pairs
        known = dict(zip(old.task_names(before), old.task_ids(before), strict=True))
        relatives = dict(self._init.relatives)
        parents: list[tuple[int, ...]] = [()] * rows
        for name, row in zip(new.task_names(of), new.task_ids(of), strict=True):
            relative = "-".join(relatives.get(part, part) for part in name.split("-"))
            parents[row] = tuple(known[n] for n in (name, relative) if n in known)[:1]
        return parents

    def _dense(self, path, spec):
        """Copies of the dense network at the same position (Komatsuzaki et al. 2023).

        Sparse Upcycling, arXiv 2212.05055, section 3. The router is drawn. If the weights of a
        token's experts sum to 1 and no choice is dropped, the model equals the dense one. A network
        that all tokens use (moe.shared.Gated) is a copy too.
        """
        moe = self._new.params.model.moe
        if moe and isinstance(moe.shared, Gated) and "/shared/" in path:
            dense = path.replace("/shared/", "/")
            found = dense in self._theirs
            return _Origin(f"a copy of {dense}", self._theirs[dense], dense) if found else None
        dense, axis = path.replace("/experts/", "/"), spec.dims.find("E")
        if axis < 0 or dense not in self._theirs:
            return None
        stored, count = self._theirs[dense], spec.shape[axis]
        return _Origin(f"{count} copies of {dense}", copies(stored, axis, count), dense)


def _misfit(path: str, spec: WeightSpec, origin: _Origin) -> str:
    """The rule and the cure for a weight of another shape."""
    return (
        f"Weight {path} is {spec.shape}, but from {origin.path} it would be "
        f"{tuple(origin.tensor.shape)}. Give the model the same sizes, such as "
        f"model.moe.num_experts, or draw it: --set=\"init.redraw=('{path}',)\"."
    )


def _describe(parents: list[tuple[int, ...]]) -> str:
    counts = {
        "kept": sum(len(of) == 1 for of in parents),
        "means of several": sum(len(of) > 1 for of in parents),
        "drawn": sum(not of for of in parents),
    }
    return "rows " + ", ".join(f"{count:,} {how}" for how, count in counts.items() if count)


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
