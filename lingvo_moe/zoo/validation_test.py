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
from lingvo_moe.moe.by_node import ByNode
from lingvo_moe.training.adamw import AdamW
from lingvo_moe.training.schedules import Constant, Cosine

REQUIRED = [Constant(learning_rate=1.0), Cosine(learning_rate=1.0, total_steps=9)]
REQUIRED += [AdamW(schedule=REQUIRED[0])]
REQUIRED += [VExperts(devices=2, slots_per_device=2), ByNode(nodes=2, kept=1)]

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


@pytest.mark.parametrize(
    ("assignment", "rule"),
    [
        ("model.num_heads=0", "num_heads must be >= 1, got 0"),
        ("model.head_dim=-1", "head_dim must be >= 1, got -1"),
        ("model.model_dim=99999999999", "model_dim must be a whole number of 32 bits"),
        ("model.dropout_rate=1", "dropout_rate must be in [0, 1), got 1.0"),
        ("model.moe.every_n=0", "every_n must be >= 1, got 0"),
        ("model.moe.gating.balance.weight=-1", "weight must be >= 0, got -1.0"),
        (
            "model.moe.training.capacity_factor=1e999",
            "capacity_factor must be finite in float32 or None",
        ),
        ("source_vocab_size=-5", "source_vocab_size must be >= 1, got -5"),
        ("activation_dtype=float16", "activation_dtype must be in ('float32', 'bfloat16'), got 'f"),
        ("optimizer.schedule.learning_rate=1e999", "learning_rate must be finite in float32"),
        ("optimizer.schedule.warmup_steps=-1", "warmup_steps must be >= 0 or None, got -1"),
        ("optimizer.weight_decay=-0.1", "weight_decay must be >= 0, got -0.1"),
        ("optimizer=Adafactor(clip_threshold=0)", "clip_threshold must be > 0, got 0.0"),
        ("optimizer=AdamW(schedule=Constant(learning_rate=1), epsilon=0)", "epsilon must be > 0"),
        ("train.seed=3000000000", "seed must be a whole number of 32 bits"),
        ("train.clip_norm=-1", "clip_norm must be > 0 or None, got -1.0"),
        ("train.patience=0", "patience must be >= 1 or None, got 0"),
        ("decoding.beam_size=10000", "beam_size must be 1 to 64, got 10000"),
        ("input.temperature=-1", "temperature must be > 0, got -1.0"),
        ("sharding.rules=(('BG', ('data',)),)", "rules must be for single letters, got (('BG'"),
    ],
)
def test_values_out_of_range_are_refused_with_assignment_and_rule(assignment, rule):
    message = f"^{re.escape(f'--set={assignment}: ')}.*{re.escape(rule)}"
    with pytest.raises(ValueError, match=message):
        override(registry.get_params("tiny.MoE"), [assignment])
