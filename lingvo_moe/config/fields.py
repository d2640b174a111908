"""Fields of params: types and ranges are declared at the field and checked at construction.

    class Attention(Layer):  # a Params
        num_heads: PositiveInt
        dropout_rate: Rate = 0.0
        position: Literal["learned", "relative"] = "relative"

Every int must fit 32 bits and every float must be finite in float32, because TensorFlow computes
with these types.
"""

import dataclasses
import enum
import functools
import itertools
import numbers
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from lingvo_moe.system.lines import printable


class Rule(NamedTuple):
    """A rule for values: its text after "must be" in errors, and its test."""

    words: str
    holds: Callable[[Any], bool]


PositiveInt = Annotated[int, Rule(">= 1", lambda n: n >= 1)]
NonNegativeInt = Annotated[int, Rule(">= 0", lambda n: n >= 0)]
PositiveFloat = Annotated[float, Rule("> 0", lambda n: n > 0)]
NonNegativeFloat = Annotated[float, Rule(">= 0", lambda n: n >= 0)]
Rate = Annotated[float, Rule("in [0, 1)", lambda n: 0 <= n < 1)]
Share = Annotated[float, Rule("in [0, 1]", lambda n: 0 <= n <= 1)]


# The value of a field that is computed from the dataset before training or preparation begins.
FROM_DATA: Any
if typing.TYPE_CHECKING:
    FromData = typing.Never  # code that runs after the recipe never sees FROM_DATA
else:

    class FromData(enum.Enum):
        """The type of FROM_DATA, for annotations: `max_steps: PositiveInt | FromData`."""

        FROM_DATA = "FROM_DATA"

        def __repr__(self):
            return self.value

    FROM_DATA = FromData.FROM_DATA

_MAX_FLOAT = 3.4028234e38
_ALWAYS = {
    int: Rule("a whole number of 32 bits", lambda n: -(2**31) <= n < 2**31),
    float: Rule("finite in float32", lambda n: abs(n) <= _MAX_FLOAT),
}
_LONGEST = 100  # characters of a value in an error


class Params:
    """A frozen dataclass that checks its fields; a `__post_init__` of a subclass calls super's
    first. Raises ValueError: a field is not of its annotated type or breaks a rule of it."""

    def __post_init__(self):
        cls: type = type(self)
        for name, (plain, annotated) in _hints(cls).items():
            value = getattr(self, name)
            if not conforms(value, plain):
                wanted = type_name(plain)
                raise ValueError(f"{name} must be of type {wanted}, got {short_repr(value)}.")
            rule = _broken_rule(value, annotated)
            if rule is not None:
                raise ValueError(f"{name} must be {rule}, got {short_repr(value)}.")
            object.__setattr__(self, name, _plain(value, plain))


def _plain(value: Any, hint: Any = None) -> Any:
    """A number of NumPy as one of Python, which a file can hold, also in tuples; an int as a float
    if the hint is one."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(_plain, value))
    if isinstance(value, numbers.Number) and hasattr(value, "item"):
        value = value.item()
    wants_float = float in alternatives(hint) and int not in alternatives(hint)
    return float(value) if type(value) is int and wants_float else value


def conforms(value: Any, hint: Any) -> bool:
    """Whether value is of the annotated type; an int passes for a float, a bool not for an int."""
    if hint is Any:
        return True
    if hint is None:
        return value is None
    if len(alternatives(hint)) > 1:
        return any(conforms(value, h) for h in alternatives(hint))
    if typing.get_origin(hint) is tuple:
        return (
            isinstance(value, tuple)
            and (_is_homogeneous(hint) or len(value) == len(typing.get_args(hint)))
            and all(itertools.starmap(conforms, _elements(value, hint)))
        )
    if hint is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if is_literal(hint):
        return isinstance(value, str)  # the allowed texts are a rule
    if typing.get_origin(hint) in (list, dict):
        elements = value.values() if isinstance(value, dict) else value
        return isinstance(value, typing.get_origin(hint)) and all(
            conforms(element, typing.get_args(hint)[-1]) for element in elements
        )
    return isinstance(value, typing.get_origin(hint) or hint)


def check_fields(value: Any, hints: Mapping[str, Any], source: str) -> None:
    """Checks that a parsed JSON value is an object with these fields, of types str, int, list[…] or
    dict[str, …]; it may have others too. `source` is its name in errors. Raises ValueError: it is
    not an object, or a field is missing or of another type."""
    if not isinstance(value, dict):
        raise ValueError(f"{source} must be a JSON object, got {value!r:.60}.")
    for name, hint in hints.items():
        if name not in value:
            raise ValueError(f"{source} has no field {name!r}; was it written to the end?")
        if not conforms(value[name], hint):
            kind = hint.__name__ if isinstance(hint, type) else hint
            raise ValueError(f"{source}: {name!r} must be {kind}, got {value[name]!r:.60}.")


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union; of any other type, itself."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if union else (hint,)


def is_literal(hint: Any) -> bool:
    """Whether the type is a Literal of strings, such as Literal["source", "target"]."""
    return typing.get_origin(hint) is Literal


def type_name(hint: Any) -> str:
    """A type for an error message, such as "int" or "float | None"."""
    if len(alternatives(hint)) > 1:
        return " | ".join(map(type_name, alternatives(hint)))
    if hint is type(None):
        return "None"
    if is_literal(hint):
        return "str"
    if hint is FromData:
        return repr(FROM_DATA)
    return hint.__name__ if isinstance(hint, type) else str(hint)


def short_repr(value: Any) -> str:
    """A value for an error message: its repr, shortened."""
    try:
        return shortened(repr(value))
    except ValueError:  # Python cannot format numbers of more than 4300 digits
        return "a number of thousands of digits"


def shortened(text: str) -> str:
    """A text for an error message: printable, in one line, shortened."""
    return printable(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


@functools.cache
def _hints(cls: type) -> dict[str, tuple[Any, Any]]:
    """Field -> its type, and the same with its rules."""
    plain, annotated = (
        typing.get_type_hints(cls, include_extras=extras) for extras in (False, True)
    )
    names = [field.name for field in dataclasses.fields(cls)]
    return {name: (plain[name], annotated[name]) for name in names}


def _broken_rule(value: Any, hint: Any) -> str | None:
    """The text of a rule that a value of the annotated type breaks; None if it breaks none."""
    if value is None or value is FROM_DATA:
        return None
    if len(alternatives(hint)) > 1:
        kinds = [h for h in alternatives(hint) if h not in (type(None), FromData)]
        broken = [_broken_rule(value, h) for h in kinds]
        optional = " or None" if type(None) in alternatives(hint) else ""
        return None if None in broken else f"{broken[0]}{optional}"
    if typing.get_origin(hint) is tuple:
        of_elements = itertools.starmap(_broken_rule, _elements(value, hint))
        return next((rule for rule in of_elements if rule is not None), None)
    if is_literal(hint):
        names = typing.get_args(hint)
        return None if value in names else f"in {names}"
    rules = getattr(hint, "__metadata__", ())
    always = _ALWAYS.get(getattr(hint, "__origin__", hint))
    rules += (always,) if always else ()
    return next((rule.words for rule in rules if not rule.holds(value)), None)


def _is_homogeneous(hint: Any) -> bool:
    args = typing.get_args(hint)
    return len(args) == 2 and args[1] is Ellipsis


def _elements(value: tuple, hint: Any) -> zip:
    """(element, its type) of a tuple."""
    args = typing.get_args(hint)
    return zip(value, itertools.repeat(args[0]) if _is_homogeneous(hint) else args, strict=False)
