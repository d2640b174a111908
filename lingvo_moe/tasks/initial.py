"""The initial weights of a translation model: drawn, or from another model.

V vocabulary, M model, J tasks.
"""

import abc
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lingvo_moe.core.layer import WeightSpec
from lingvo_moe.data.dataset import SIDES
from lingvo_moe.data.extension import find_parents
from lingvo_moe.layers.dispatch import Gather
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.param_changes import function_changes
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.training.checkpoint import Checkpoint
from lingvo_moe.training.initial import (
    KEPT,
    Drawn,
    InitialState,
    InitialValue,
    Keep,
    Transfer,
    Upcycle,
    initial_state,
)
from lingvo_moe.training.lazy import Rows
from lingvo_moe.training.process import Process
from lingvo_moe.training.replicas import experts_once


@dataclasses.dataclass(frozen=True)
class _Table(Transfer):
    """A table whose rows have a meaning, by which they are copied to new positions.

    Attributes:
        seed: of rows that are drawn.
    """

    seed: int

    def origin(self, path, there, spec, tensors):
        if there not in tensors or not self._is_table(spec):
            return None
        stored = tensors[there]
        parents = self._parents(path, there, spec.shape[0], stored.shape[0])
        if parents == [(i,) for i in range(stored.shape[0])]:
            return InitialValue(KEPT, stored, there)
        rows = Rows(stored, parents, Drawn(path, spec, self.seed))
        return InitialValue(_describe(parents), rows, there)

    @abc.abstractmethod
    def _is_table(self, spec: WeightSpec) -> bool:
        """Whether the weight is such a table."""

    @abc.abstractmethod
    def _parents(self, path: str, there: str, rows: int, old_rows: int) -> list[tuple[int, ...]]:
        """For each row the rows of the other model whose mean it is; () to draw it."""


@dataclasses.dataclass(frozen=True)
class VocabularyRows(_Table):
    """The rows [V, M] of an embedding, copied by piece; see `data.extension.find_parents`.

    Rows without a piece keep their positions.

    Attributes:
        new: the logdir of the model.
        old: the logdir of the other model.
    """

    new: ModelDir
    old: ModelDir

    def _is_table(self, spec):
        return spec.dims.startswith("V")

    def _parents(self, path, there, rows, old_rows):
        new, old = self.new.vocabulary(_side(path)), self.old.vocabulary(_side(there))
        relatives = dict(self.new.params.init.relatives)
        known = (
            [(i,) for i in range(new.size)]
            if new.sha256 == old.sha256
            else find_parents(new, old, relatives if old.tags else {})
        )
        spare = [(i,) if old.size <= i < old_rows else () for i in range(new.size, rows)]
        return known + spare


@dataclasses.dataclass(frozen=True)
class TaskRows(_Table):
    """The rows [J, …] of a router by task, copied by task; spare rows are drawn.

    Attributes:
        new: the model with its router.
        old: the other model.
    """

    new: TranslationTask
    old: TranslationTask

    def _is_table(self, spec):
        return spec.dims.startswith("J")

    def _parents(self, path, there, rows, old_rows):
        del path, there, old_rows
        new, old = self.new.task_router, self.old.task_router
        assert new, "only a router by task has such rows"
        if old is None or new.task != old.task:
            raise ValueError(
                f"The router routes by the {new.task}, that of init.logdir by "
                f"{f'the {old.task}' if old else 'tokens'}. Draw it at random: "
                f"--set=\"init.redraw=('/gate$',)\"."
            )
        known = dict(zip(old.task_names(self.old.pairs), old.task_ids(self.old.pairs), strict=True))
        names = zip(new.task_names(self.new.pairs), new.task_ids(self.new.pairs), strict=True)
        relatives = dict(self.new.params.init.relatives)
        parents: list[tuple[int, ...]] = [()] * rows
        for name, row in names:
            relative = "-".join(relatives.get(part, part) for part in name.split("-"))
            parents[row] = tuple(known[n] for n in (name, relative) if n in known)[:1]
        return parents


def initialize(
    model_dir: ModelDir, runtime: Any, process: Process, report: Callable[[str], None]
) -> tuple[int, str]:
    """Initializes the weights of a runtime by params.init.

    Args:
        model_dir: of the model.
        runtime: to be initialized.
        process: this process; all of them take the same checkpoint.
        report: takes lines.

    Returns:
        The number of steps, and a table of the sources of weights; "" if all are drawn.

    Raises:
        ValueError: there is no such model or checkpoint, it does not fit, or its step is not below
            train.max_steps; see `initial_state`.
        OSError: the checkpoint is damaged.
    """
    params = model_dir.params
    if not params.init.logdir:
        runtime.initialize(params.train.seed)
        return 0, ""
    old = ModelDir.open(Path(params.init.logdir))
    if params.init.optimizer_state:  # training goes on from the weights themselves
        old = old.with_overrides(["averaging=Raw()"])
    _check_relatives(model_dir, old)
    states: list[InitialState] = []

    def use(checkpoint):
        states.append(_initial_state(model_dir, old, checkpoint))
        runtime.initialize(params.train.seed, states[-1].tensors)

    step = old.read_checkpoint(params.init.step, use).step
    if not process.all_have(step):
        raise ValueError(
            f"Processes found different checkpoints in {old.path}; pass --set=init.step={step}."
        )
    if params.init.optimizer_state and step >= params.train.max_steps:
        raise ValueError(
            f"With init.optimizer_state=True training goes on from step {step} of {old.path}, and "
            f"train.max_steps={params.train.max_steps} is not above it. Raise train.max_steps."
        )
    text = f"Initial weights, from step {step} of {old.path}:\n{states[-1].table.to_text()}\n"
    if changes := function_changes(old.params, params):
        both = (f"{path}={now} (before {was})" for path, (was, now) in changes.items())
        text += f"The models differ in: {', '.join(both)}.\n"
    report(text.rstrip())
    return step if params.init.optimizer_state else 0, text


def _initial_state(new: ModelDir, old: ModelDir, checkpoint: Checkpoint) -> InitialState:
    params, task, old_task = new.params, new.task, old.task
    if task.vexperts:
        task = task.with_moe(dispatcher=Gather())  # the runtime puts experts into slots
    seed, weights = params.train.seed, task.weights()
    moe = params.model.moe
    transfers = (
        VocabularyRows(seed, new, old),
        TaskRows(seed, task, old_task),
        Keep(),
        Upcycle(params.init.expert_noise, seed, bool(moe and moe.shared_expert)),
    )
    if params.init.optimizer_state and type(params.optimizer) is not type(old.params.optimizer):
        raise ValueError(
            f"init.optimizer_state=True takes the state of {type(old.params.optimizer).__name__}, "
            f"and this model trains with {type(params.optimizer).__name__}; set it to False."
        )
    tensors = experts_once(checkpoint.tensors)
    return initial_state(
        params.init, transfers, weights, params.optimizer.slots(weights), tensors, seed
    )


def _check_relatives(new: ModelDir, old: ModelDir) -> None:
    tags = _tags(new), _tags(old)
    for pair in new.params.init.relatives:
        for language, model_dir, known in zip(pair, (new, old), tags, strict=True):
            known = known.union(*(name.split("-") for name in model_dir.pairs))
            if language not in known:
                raise ValueError(
                    f"init.relatives={pair}: {language!r} is no language of {model_dir.path}; it "
                    f"has {', '.join(sorted(known))}."
                )
        if pair[0] not in tags[0] - tags[1] and not new.task.task_router:
            raise ValueError(
                f"init.relatives={pair}: {pair[0]!r} has no new tag and no router by task, so no "
                f"weight starts as one of {pair[1]!r}. Leave the pair out."
            )


def _tags(model_dir: ModelDir) -> set[str]:
    """The languages with a tag in a vocabulary."""
    return {language for side in SIDES for language in model_dir.vocabulary(side).tags}


def _side(path: str) -> str:
    return "source" if path.startswith("encoder/") else "target"


def _describe(parents: list[tuple[int, ...]]) -> str:
    counts = {
        "kept": sum(len(of) == 1 for of in parents),
        "means of several": sum(len(of) > 1 for of in parents),
        "drawn": sum(not of for of in parents),
    }
    return "rows " + ", ".join(f"{count:,} {how}" for how, count in counts.items() if count)
