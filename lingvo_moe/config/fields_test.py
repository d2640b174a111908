import abc
import dataclasses
import math
from typing import Literal

import numpy as np
import pytest

from lingvo_moe.config.fields import (
    NonNegativeFloat,
    NonNegativeInt,
    Params,
    PositiveFloat,
    PositiveInt,
    Rate,
    Share,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy(Params, abc.ABC):
    rate: Rate = 0.0

    @abc.abstractmethod
    def apply(self): ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Named(Policy):
    mode: Literal["fast", "slow"] = "fast"

    def apply(self): ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(Params):
    layers: PositiveInt = 1
    seed: int = 0
    skip: NonNegativeInt = 0
    factor: PositiveFloat | None = None
    weight: NonNegativeFloat = 0.0
    share: Share = 1.0
    bias: float = 0.0
    tied: bool = False
    sizes: tuple[PositiveInt, ...] = ()
    rules: tuple[tuple[str, Rate], ...] = ()
    policy: Policy | None = None
    low: int = 0
    high: int = 9

    def __post_init__(self):
        super().__post_init__()
        if self.low > self.high:
            raise ValueError("low must be <= high.")


def test_values_at_the_edges_of_their_ranges_are_taken():
    for fields in (
        {"layers": 1, "seed": -(2**31), "skip": 0, "factor": 1e-9, "weight": 0, "share": 1},
        {"layers": 1, "sizes": (1, 2**31 - 1), "share": 0.0, "bias": -3e38},
        {"layers": 1, "rules": (("a", 0), ("b", 0.999)), "policy": Named(mode="slow")},
    ):
        made = Model(**fields)
        assert {name: getattr(made, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": 0}, ">= 1"),
        ({"factor": 0.0}, "> 0 or None"),
        ({"share": 1.1}, "share must"),
        ({"sizes": (1, 0)}, "sizes must"),
        ({"rules": (("a", 1),)}, "rules must"),
        ({"bias": math.nan}, "finite"),
        ({"factor": math.inf}, "finite"),
        ({"seed": 2**31}, "32 bits"),
        ({"seed": 10**5000}, "digits"),
        ({"layers": True}, "type int"),
        ({"tied": 1}, "type bool"),
        ({"factor": "x" * 999}, r"type float \| None, got 'xx.*…\.$"),
        ({"sizes": [1]}, "type tuple"),
        ({"low": 3, "high": 2}, "low must"),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Model(**fields)


def test_fields_of_a_base_class_and_names_are_checked_too():
    with pytest.raises(ValueError, match=r"rate must be in \[0, 1\), got 1\."):
        Named(rate=1)
    with pytest.raises(ValueError, match=r"mode must be in \('fast', 'slow'\), got 'quick'\."):
        Named(mode="quick")


def test_numbers_of_numpy_become_numbers_of_python():
    """Files hold only these; the values of a sweep are often NumPy's."""
    made = Model(layers=np.int64(3), sizes=(np.int32(2), 4), share=np.float64(0.5))
    assert repr((made.layers, made.sizes, made.share)) == "(3, (2, 4), 0.5)"
