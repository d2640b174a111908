"""Params are frozen dataclasses; this module overrides their fields from text and prints them."""

import ast
import dataclasses
import difflib
import itertools
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def override(params: Any, assignments: Iterable[str]) -> Any:
    """Returns params with fields replaced, as in `--set=train.optimizer.beta2=0.98`.

    A value is a Python literal (`3`, `0.5`, `None`, `('de-en',)`), bare text for a str field, or,
    for a field that holds a policy, the policy's class with its arguments: `Top2(second='always')`.

    Args:
        params: a frozen dataclass, possibly with dataclasses inside.
        assignments: texts `dotted.path=value`, applied in order. Fields of one object that follow
            each other are replaced at once: what it asks of them together must hold of all.

    Raises:
        ValueError: malformed text, unknown field, or a value of the wrong type; the message
            names the nearest fields or the type that is wanted.
    """
    pairs = map(_split, assignments)
    for owner, fields in itertools.groupby(pairs, key=lambda pair: pair[0].rpartition(".")[0]):
        params = _replace(params, owner.split(".") if owner else [], dict(fields))
    return params


def _split(assignment: str) -> tuple[str, str]:
    path, equals, value = assignment.partition("=")
    if not equals or not path:
        raise ValueError(f"--set={assignment!r} must read dotted.path=value.")
    return path.strip(), value.strip()


def _replace(params: Any, owner: list[str], texts: Mapping[str, str]) -> Any:
    """Params with fields of the object at that path replaced; texts are by their full paths."""
    if owner:
        head, *rest = owner
        _check_field(params, head, next(iter(texts)))
        return dataclasses.replace(params, **{head: _replace(getattr(params, head), rest, texts)})
    values = {}
    for path, text in texts.items():
        name = path.rpartition(".")[2]
        _check_field(params, name, path)
        values[name] = _parse(text, typing.get_type_hints(type(params))[name], path)
    return dataclasses.replace(params, **values)


def _check_field(params: Any, name: str, path: str) -> None:
    if name not in _field_names(type(params)):
        raise ValueError(f"--set={path}: {_no_field(type(params), name)}")


def _parse(text: str, hint: Any, path: str) -> Any:
    if hint is str:
        return _unquote(text)
    policies = {c.__name__: c for h in _alternatives(hint) for c in _subclasses(h)}
    name = text.partition("(")[0]
    if name in policies:
        return _policy(policies[name], text, path)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if not conforms(value, hint):
        wanted = " or ".join(sorted(policies)) or _hint_name(hint)
        raise ValueError(f"--set={path}={text}: {text!r} is not of type {wanted}.")
    wants_float = float in _alternatives(hint) and int not in _alternatives(hint)
    return float(value) if type(value) is int and wants_float else value


def _unquote(text: str) -> str:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


def _policy(cls: type, text: str, path: str) -> Any:
    """The object that `Name(field=value, …)` or a bare `Name` stands for."""
    hints = typing.get_type_hints(cls)
    values = {}
    for name, value in _arguments(cls, text, path).items():
        if name not in _field_names(cls):
            raise ValueError(f"--set={path}={text}: {_no_field(cls, name)}")
        values[name] = _parse(value, hints[name], f"{path}.{name}")
    try:
        return cls(**values)
    except TypeError as error:  # a field without a default, or an abstract class
        raise ValueError(f"--set={path}={text}: {error}.") from error


def _arguments(cls: type, text: str, path: str) -> dict[str, str]:
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        call = None
    if isinstance(call, ast.Name):
        return {}
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError(f"--set={path}={text}: write it as {cls.__name__}(field=value, …).")
    return {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}


def _no_field(cls: type, name: str) -> str:
    names = _field_names(cls)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names
    hint = ", ".join(map(repr, near)) or "a shorter path"
    return f"{cls.__name__} has no field {name!r}. Did you mean {hint}?"


def _field_names(cls: type) -> list[str]:
    return (
        [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    )


def _alternatives(hint: Any) -> tuple[Any, ...]:
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if union else (hint,)


def _subclasses(cls: Any) -> Iterator[type]:
    if isinstance(cls, type) and dataclasses.is_dataclass(cls):
        yield cls
        for sub in cls.__subclasses__():
            yield from _subclasses(sub)


def _hint_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def conforms(value: Any, hint: Any) -> bool:
    """Whether value is of the annotated type; an int passes for a float, a bool not for an int."""
    if hint is Any:
        return True
    if hint is None:
        return value is None
    if len(_alternatives(hint)) > 1:
        return any(conforms(value, h) for h in _alternatives(hint))
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        homogeneous = len(args) == 2 and args[1] is Ellipsis
        hints = (args[0],) * len(value) if homogeneous and isinstance(value, tuple) else args
        return (
            isinstance(value, tuple)
            and len(value) == len(hints)
            and all(map(conforms, value, hints))
        )
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def to_text(params: Any) -> str:
    """The resolved params, a line a field: `model.moe.num_experts : 128`, in declared order."""
    return "\n".join(f"{path} : {value}" for path, value in _leaves(params, "")) + "\n"


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, str]]:
    if prefix and dataclasses.is_dataclass(value):
        yield prefix, type(value).__name__
    if not dataclasses.is_dataclass(value):
        yield prefix, repr(value)
        return
    for field in dataclasses.fields(value):
        path = f"{prefix}.{field.name}" if prefix else field.name
        yield from _leaves(getattr(value, field.name), path)
