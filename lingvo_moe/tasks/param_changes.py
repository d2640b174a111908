"""Which params of a model may change when its logdir is used again."""

import dataclasses
import fnmatch
from pathlib import Path
from typing import NamedTuple

from lingvo_moe.config.params import to_fields
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.training.train_params import TrainParams

_Both = tuple[str, str]
_NEVER = (
    "input.pairs",
    "optimizer.ema_decay",  # without it the averages would be lost
)


class Changeable(NamedTuple):
    """The params that may change at one time."""

    patterns: tuple[str, ...]  # of their dotted paths, with * for any text
    when: str  # the time, for the error

    def check(self, logdir: Path, old: TranslationParams, new: TranslationParams) -> None:
        """Checks that only these params differ between those of a logdir and the new ones. Raises
        ValueError: another one does."""
        for path, (was, now) in self.forbidden(old, new).items():
            flag = "--init_from" if path == "init.logdir" else "--set"
            raise ValueError(
                f"Logdir {logdir} has a model with {path}={was}, but {flag} gives {now}; it cannot "
                f"change {self.when}. Leave out this {flag}, or train a new model in another "
                f"--logdir; with --init_from={logdir} it starts from these weights."
            )

    def forbidden(self, old: TranslationParams, new: TranslationParams) -> dict[str, _Both]:
        """The params that differ and may not: path -> the texts of the old and the new value."""
        before, after = to_fields(old), to_fields(new)
        both = {p: (before.get(p, "None"), after.get(p, "None")) for p in {**after, **before}}
        return {p: (was, now) for p, (was, now) in both.items() if was != now and not self._has(p)}

    def _has(self, path: str) -> bool:
        return path not in _NEVER and any(fnmatch.fnmatchcase(path, p) for p in self.patterns)


# They do not change the function of a trained model: sharding, dispatch and others, but not a
# capacity_factor.
_DEVICES = (
    "sharding*",
    "activation_dtype",
    "model.remat",
    "model.moe.training",
    "model.moe.training.[!c]*",
    "model.moe.evaluation",
    "model.moe.evaluation.[!c]*",
)


_TRAIN = [field.name for field in dataclasses.fields(TrainParams)]
# Without effect on the data, their order, the loss or what is best.
RESUMING = Changeable(
    (
        *_DEVICES,
        *("optimizer.*", "decoding*"),
        *(f"train.{name}" for name in _TRAIN if name not in ("seed", "best_by")),
    ),
    "when training resumes",
)

# For results that are recorded as those of given params.
COMPARING = Changeable(_DEVICES, "in a comparison")

# For decoding, evaluation and export also params that are used only in training may change.
AFTER_TRAINING = Changeable(
    (
        *_DEVICES,
        "decoding*",
        "optimizer*",
        "train*",
        "input*",
        "label_smoothing",
        "model.dropout_rate",
        "model.moe.training*",
        "model.moe.evaluation*",
        "model.moe.gating.balance*",
        "model.moe.router.jitter",
        "model.moe.router.z_loss_weight",
        "model.moe.expert.dropout_rate",
    ),
    "after training",
)


def function_changes(old: TranslationParams, new: TranslationParams) -> dict[str, _Both]:
    """The params in which two models differ so that the same weights compute something else: path
    such as "model.num_heads" -> texts of the old and the new value. If the values are objects of
    different classes, their fields are left out."""
    found: dict[str, _Both] = {}
    for path, both in AFTER_TRAINING.forbidden(old, new).items():
        inside = any(path.startswith(f"{other}.") for other in found)
        if path.startswith("model.") and not inside:
            found[path] = both
    return found
