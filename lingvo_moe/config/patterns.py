"""Rules for names: pairs of a regular expression and a value, in params."""

import re
from collections.abc import Collection, Sequence
from typing import Annotated, TypeVar

from lingvo_moe.config.fields import NonNegativeFloat, Rule


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


Pattern = Annotated[str, Rule("a regular expression", _compiles)]

# (pattern, factor): a name has the factor of the first pattern that is found in it, else 1.
Factors = tuple[tuple[Pattern, NonNegativeFloat], ...]

Value = TypeVar("Value")


def first_match(rules: Sequence[tuple[str, Value]], name: str, otherwise: Value) -> Value:
    """The value of the first rule whose pattern is found in the name."""
    return next((value for pattern, value in rules if re.search(pattern, name)), otherwise)


def check_found(patterns: Sequence[str], names: Collection[str], field: str) -> None:
    """Raises ValueError: one of the patterns, of a field of the params, is found in none of the
    names."""
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in names):
            raise ValueError(
                f"{field}: the pattern {pattern!r} is found in no name; there are "
                f"{', '.join(list(names)[:3])} and others. Correct it or leave it out."
            )
