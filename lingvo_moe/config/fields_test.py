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
        ({"layers": 0}, r"layers must be >= 1, got 0\."),
        ({"factor": 0.0}, r"factor must be > 0 or None, got 0\.0\."),
        ({"share": 1.1}, r"share must be in \[0, 1\], got 1\.1\."),
        ({"sizes": (1, 0)}, r"sizes must be >= 1, got \(1, 0\)\."),
        ({"rules": (("a", 1),)}, r"rules must be in \[0, 1\), got"),
        ({"bias": math.nan}, r"bias must be finite in float32, got nan\."),
        ({"factor": math.inf}, "factor must be finite in float32 or None, got inf"),
        ({"seed": 2**31}, r"seed must be a whole number of 32 bits, got 2147483648\."),
        ({"seed": 10**5000}, "seed must be .* got a number of thousands of digits"),
        ({"layers": True}, r"layers must be of type int, got True\."),
        ({"tied": 1}, "tied must be of type bool"),
        ({"factor": "x" * 999}, r"factor must be of type float \| None, got 'xx.*…\.$"),
        ({"sizes": [1]}, r"sizes must be of type tuple\[int, \.\.\.\], got \[1\]"),
        ({"low": 3, "high": 2}, "low must be <= high"),
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
