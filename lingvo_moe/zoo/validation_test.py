"""Every field of every policy and model refuses wrong values at construction."""

import dataclasses
import inspect
import math
import re
import typing

import pytest

from lingvo_moe.config import registry
from lingvo_moe.config.fields import FromData, Params, alternatives
from lingvo_moe.config.params import classes, override
from lingvo_moe.flexmoe.vexperts import VExperts
from lingvo_moe.training.adamw import AdamW
from lingvo_moe.training.schedules import Constant, Cosine

REQUIRED = [Constant(learning_rate=1.0), Cosine(learning_rate=1.0, total_steps=9)]
REQUIRED += [AdamW(schedule=REQUIRED[0])]
REQUIRED += [VExperts(devices=2, slots_per_device=2)]

NO_NUMBERS = (math.nan, math.inf, -math.inf, 1e39, 10**400, -(10**400), True, "3", b"", [1], {})
WRONG = {
    int: (*NO_NUMBERS, 2**31, -(2**31) - 1, 1.5, None),
    float: (*NO_NUMBERS, None),
    bool: (1, 0, "True", None),
    str: (1, b"", ["x"], None),
    tuple: ("de-en", ["de-en"], {}, 1, None),
    typing.Literal: ("none of them", "", 1, b"", None),
}


def _parts(value):
    """A params object and all objects in its fields."""
    yield value
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if dataclasses.is_dataclass(inner):
            yield from _parts(inner)


def _instances():
    """An object of each class that --set can name in some registered model."""
    models = [registry.get_params(name) for name in registry.all_names()]
    found = {type(part): part for model in models for part in _parts(model)}
    found |= {type(part): part for part in REQUIRED}
    for part in list(found.values()):
        for hint in typing.get_type_hints(type(part)).values():
            for cls in classes(hint):
                of_a_test = cls.__module__.endswith("_test")
                if cls not in found and not inspect.isabstract(cls) and not of_a_test:
                    found[cls] = cls()
    return sorted(found.values(), key=lambda part: type(part).__name__)


@pytest.mark.parametrize("params", _instances(), ids=lambda params: type(params).__name__)
def test_no_field_takes_a_value_of_another_type_or_a_number_that_is_none(params):
    assert isinstance(params, Params)
    for name, hint in typing.get_type_hints(type(params)).items():
        if typing.get_origin(hint) is typing.ClassVar:
            continue
        kinds = {typing.get_origin(h) or h for h in alternatives(hint)}
        policies = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
        (kind,) = kinds - {type(None), FromData}
        for wrong in ("Top2()", 1, ()) if policies else WRONG[kind]:
            if wrong is None and type(None) in kinds:
                continue
            with pytest.raises(ValueError, match=rf"{name} must be "):
                dataclasses.replace(params, **{name: wrong})


OUT_OF_RANGE = [
    "model.num_heads=0",
    "model.head_dim=-1",
    "model.dropout_rate=1",
    "model.moe.every_n=0",
    "model.moe.gating.balance.weight=-1",
    "source_vocab_size=-5",
    "activation_dtype=float16",
    "optimizer.schedule.warmup_steps=-1",
    "optimizer.weight_decay=-0.1",
    "optimizer=Adafactor(clip_threshold=0)",
    "optimizer=AdamW(schedule=Constant(learning_rate=1),epsilon=0)",
    "train.clip_norm=-1",
    "train.patience=0",
    "decoding.beam_size=10000",
    "input.temperature=-1",
    "sharding.rules=(('BG',('data',)),)",
]


@pytest.mark.parametrize("assignment", OUT_OF_RANGE)
def test_values_out_of_range_are_refused_with_their_assignment(assignment):
    with pytest.raises(ValueError, match=f"^{re.escape(f'--set={assignment}: ')}.* must be"):
        override(registry.get_params("tiny.MoE"), [assignment])
