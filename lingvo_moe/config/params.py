"""Params are frozen dataclasses; this module overrides their fields from text and prints them."""

import ast
import dataclasses
import difflib
import functools
import importlib
import inspect
import itertools
import pkgutil
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from lingvo_moe.config.fields import (
    FROM_DATA,
    FromData,
    alternatives,
    conforms,
    is_literal,
    short_repr,
    shortened,
    type_name,
)
from lingvo_moe.config.plugins import module_name

# All exceptions of Python's parser, also for hostile texts; parsing runs no code.
_UNREADABLE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


def override(params: Any, assignments: Iterable[str]) -> Any:
    """Returns params with fields replaced, as in `--set=train.optimizer.beta2=0.98`.

    A value is a Python literal (`3`, `0.5`, `None`, `('de-en',)`), bare text for a str field, or,
    for a field that holds a policy, the policy's class with its arguments: `TopK(k=2)`.
    Spaces at the ends of bare text are part of it. Consecutive assignments to fields of one object
    are applied together, so rules about several fields are checked once.

    Raises ValueError: malformed text, an unknown field, a value of the wrong type, or a broken
    rule; the message begins with the assignments and names the nearest fields or the type.
    """
    pairs = map(_split, assignments)
    for owner, fields in itertools.groupby(pairs, key=lambda pair: pair[0].rpartition(".")[0]):
        params = _replace(params, owner.split(".") if owner else [], dict(fields))
    return params


def parse_policy(base: type, text: str, flag: str) -> Any:
    """The policy, of an abstract class, that the text of a flag such as "--metric" describes:
    `TopK(k=2)`. Raises ValueError as `override`, beginning with the flag."""
    try:
        return _parse(text, base, flag.removeprefix("--"))
    except ValueError as error:
        raise ValueError(f"--{str(error).removeprefix('--set=')}") from error


def evolve(params: Any, path: str, value: Any) -> Any:
    """Returns params with one field, such as "model.moe.num_experts", replaced; the argument stays
    unchanged. Raises ValueError: there is no such field, or the value is of the wrong type or
    breaks a rule."""
    head, _, rest = path.partition(".")
    if rest and head in _field_names(type(params)):
        value = evolve(getattr(params, head), rest, value)
    return evolve_all(params, {head: value})


def evolve_all(params: Any, values: Mapping[str, Any]) -> Any:
    """Returns params with several of its own fields replaced at once. Raises ValueError: as
    `evolve`."""
    for name in values:
        if name not in _field_names(type(params)):
            raise ValueError(_no_field(type(params), name))
    return dataclasses.replace(params, **values)


def _given(path: str, text: str) -> str:
    """An assignment as the user gave it, for an error message."""
    return f"--set={shortened(path)}={shortened(text)}"


def _split(assignment: str) -> tuple[str, str]:
    path, equals, value = assignment.partition("=")
    if not equals or not all(path.split(".")):
        raise ValueError(f"--set={short_repr(assignment)} must read dotted.path=value.")
    return path.strip(), value


def _replace(params: Any, owner: list[str], texts: Mapping[str, str]) -> Any:
    """Params with fields of the object at that path replaced; texts are by their full paths."""
    if owner:
        head, *rest = owner
        _check_field(params, head, next(iter(texts)))
        return _construct(params, {head: _replace(getattr(params, head), rest, texts)}, texts)
    values = {}
    for path, text in texts.items():
        name = path.rpartition(".")[2]
        _check_field(params, name, path)
        values[name] = _parse(text, typing.get_type_hints(type(params))[name], path)
    return _construct(params, values, texts)


def _construct(params: Any, values: Mapping[str, Any], texts: Mapping[str, str]) -> Any:
    try:
        return dataclasses.replace(params, **values)
    except ValueError as error:
        assignments = " ".join(_given(path, text) for path, text in texts.items())
        raise ValueError(f"{assignments}: {error}") from error


def _check_field(params: Any, name: str, path: str) -> None:
    if name not in _field_names(type(params)):
        parts = path.split(".")
        at, deeper = parts.index(name), [f for f in to_fields(params) if f.endswith(f".{name}")]
        below = [".".join([*parts[:at], field, *parts[at + 1 :]]) for field in deeper]
        raise ValueError(f"--set={shortened(path)}: {_no_field(type(params), name, below)}")


def _parse(text: str, hint: Any, path: str) -> Any:
    if hint is str:
        return _unquoted(text)
    text = text.strip()
    if text == repr(FROM_DATA) and FromData in alternatives(hint):
        return FROM_DATA
    if is_literal(hint):
        return _unquoted(text)
    if (element := _policy_of_tuple(hint)) is not None:
        return tuple(_parse(one, element, path) for one in _elements(text, element, path))
    described = _unquoted(text)  # in Python a policy may be given as its text
    if policy := _class_named(described.partition("(")[0].strip(), hint, _given(path, text)):
        return _policy(policy, described, path)
    try:
        value = ast.literal_eval(text)
    except _UNREADABLE:
        value = text
    if not conforms(value, hint):
        wanted = _choices(hint) or type_name(hint)
        raise ValueError(f"{_given(path, text)}: {short_repr(text)} is not of type {wanted}.")
    return value


def _unquoted(text: str) -> str:
    """The value of a quoted text such as 'a\\n'; a text without quotes stays as it is. If Python
    cannot read a quoted text, only the quotes are removed."""
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "'\"":
        return text
    try:
        value = ast.literal_eval(text)
    except _UNREADABLE:
        value = None
    return value if isinstance(value, str) else text[1:-1]


def _class_named(name: str, hint: Any, given: str) -> type | None:
    """The class of a policy, by its full name or else by its short one; None if there is none.
    Raises ValueError: several modules outside this package have a class of that short name."""
    full = {_class_name(c): c for c in classes(hint)}  # a notebook may define a class again
    short = [other for other, c in full.items() if c.__name__ == name]
    if name in full:
        return full[name]
    if len(short) > 1:
        raise ValueError(f"{given}: several classes have this name; write {' or '.join(short)}.")
    return full[short[0]] if short else None


def _policy_of_tuple(hint: Any) -> Any:
    """X, if the type is tuple[X, …] with policies as elements; else None."""
    for one in alternatives(hint):
        arguments = typing.get_args(one) if typing.get_origin(one) is tuple else ()
        if len(arguments) == 2 and arguments[1] is ... and any(classes(arguments[0])):
            return arguments[0]
    return None


def _elements(text: str, element: Any, path: str) -> list[str]:
    """The text of each policy in `(A(field=value, …), B())`, or of the only one in `A()`."""
    try:
        tree = ast.parse(text, mode="eval").body
    except _UNREADABLE as error:
        raise ValueError(
            f"{_given(path, text)}: write it as (NAME(field=value, …), …); NAME is "
            f"{_choices(element)}."
        ) from error
    several = isinstance(tree, ast.Tuple | ast.List)
    return [ast.get_source_segment(text, node) for node in (tree.elts if several else [tree])]  # type: ignore


def _policy(cls: type, text: str, path: str) -> Any:
    """The object written as `Name(field=value, …)` or `Name`."""
    hints = typing.get_type_hints(cls)
    values = {}
    for name, value in _arguments(cls, text, path).items():
        if name not in _field_names(cls):
            raise ValueError(f"{_given(path, text)}: {_no_field(cls, name)}")
        values[name] = _parse(value, hints[name], f"{path}.{name}")
    try:
        return cls(**values)
    except TypeError as error:  # an abstract class, or a field without a value
        raise ValueError(f"{_given(path, text)}: {error}.") from error
    except ValueError as error:
        raise ValueError(f"{_given(path, text)}: {error}") from error


def _arguments(cls: type, text: str, path: str) -> dict[str, str]:
    try:
        call = ast.parse(text, mode="eval").body
        if _is_dotted_name(call):
            return {}
        if isinstance(call, ast.Call) and _is_dotted_name(call.func) and not call.args:
            arguments = {
                word.arg: ast.get_source_segment(text, word.value) or ""
                for word in call.keywords
                if word.arg
            }
            if len(arguments) == len(call.keywords):
                return arguments
    except _UNREADABLE:
        pass
    raise ValueError(f"{_given(path, text)}: write it as {cls.__name__}(field=value, …).")


def _is_dotted_name(node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _no_field(cls: type, name: str, below: Sequence[str] = ()) -> str:
    if cls is type(None):
        return (
            f"{short_repr(name)} cannot be set, because its parent is None; set the parent first."
        )
    names = _field_names(cls)
    near = below[:3] or difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    cure = f"Did you mean {', '.join(map(repr, near))}?" if near else f"It has: {', '.join(names)}."
    return f"{cls.__name__} has no field {short_repr(name)}. {cure}"


def _field_names(cls: type) -> list[str]:
    return (
        [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    )


def classes(hint: Any) -> Iterator[type]:
    """The classes of objects that a field annotated with `hint` may hold.

    The policies of this package are in the package of their abstract class, or in the packages and
    modules of its `found_in`; these are imported here. Policies of other modules are found after
    those modules have been imported.
    """
    for cls in alternatives(hint):
        if isinstance(cls, type) and dataclasses.is_dataclass(cls):
            if inspect.isabstract(cls) and _is_ours(cls):
                own = (cls.__module__.rpartition(".")[0],)
                for package in getattr(cls, "found_in", own):
                    _import_modules(package)
            yield from _subclasses(cls)


def _choices(hint: Any) -> str:
    """The names of `classes` of which there can be objects, for errors."""
    return " or ".join(sorted({_class_name(c) for c in classes(hint) if not inspect.isabstract(c)}))


def _subclasses(cls: type) -> Iterator[type]:
    yield cls
    for sub in cls.__subclasses__():
        yield from _subclasses(sub)


@functools.cache
def _import_modules(package: str) -> None:
    for module in pkgutil.iter_modules(getattr(importlib.import_module(package), "__path__", ())):
        if not module.name.endswith("_test"):
            importlib.import_module(f"{package}.{module.name}")


def to_text(params: Any) -> str:
    """The resolved params, one field per line: `model.moe.num_experts : 128`, in declared order."""
    return "\n".join(f"{path} : {value}" for path, value in to_fields(params).items()) + "\n"


def to_fields(params: Any) -> dict[str, str]:
    """The resolved params by path, in declared order: `{"model.moe.num_experts": "128", …}`.

    An object is given as the name of its class, with its module if that is outside this package;
    a tuple of objects as the text that `override` reads; any other value as its repr.
    """
    return dict(_leaves(params, ""))


def from_fields(cls: type, fields: Mapping[str, str], source: str) -> Any:
    """The inverse of `to_fields`; no code in the texts is run, and a missing field has its default.
    `source` names the texts in errors. Raises ValueError: an unknown field or class, or a value of
    the wrong type or range."""
    remaining = dict(fields)
    params = _from_fields(cls, "", remaining, source)
    if remaining:
        path = next(iter(remaining))
        raise ValueError(
            f"{source}: {path}={remaining[path]} is not a field of {cls.__name__} in this version "
            f"of lingvo_moe; use the version that wrote it."
        )
    return params


def check_readable(params: Any) -> None:
    """Checks that `from_fields` can read what `to_fields` writes. Raises ValueError: a field has
    a value of another kind, as a class of a plug-in may have."""
    fields = to_fields(params)
    try:
        again = to_fields(from_fields(type(params), fields, "params"))
        wrong = [f"{path}={text}" for path, text in fields.items() if text != again.get(path)]
    except ValueError as error:
        wrong = [str(error).removeprefix("params: ").removesuffix(".")]
    if wrong:
        raise ValueError(
            f"These params cannot be read again from a file: {shortened(wrong[0])}. Change the "
            f"field to a number, a text, True, False, None, a tuple of these or a Params."
        )


def _from_fields(cls, prefix, remaining, source):
    """An object of cls; the fields below its prefix are removed from `remaining`."""
    hints, values = typing.get_type_hints(cls), {}
    for name in _field_names(cls):
        if prefix + name in remaining:
            values[name] = _value(prefix + name, hints[name], remaining, source)
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:  # TypeError: a field without a default is missing
        raise ValueError(f"{source}: {prefix.rstrip('.') or cls.__name__}: {error}") from error


def _value(path, hint, remaining, source):
    text = remaining.pop(path)
    known = {_class_name(c): c for c in classes(hint)}
    if text in known:
        return _from_fields(known[text], path + ".", remaining, source)
    if re.fullmatch(r"[A-Za-z_][\w.]*\.\w+", text):  # a class outside this package
        module, _, name = text.rpartition(".")
        cure = f"import its module, {module}, first"
        if module == "__main__":
            cure = f"a notebook or a session defined {name}; define it there again first"
        raise ValueError(f"{source}: {path} is of the unknown class {text}; {cure}.")
    try:
        return _parse(text, hint, path)
    except ValueError as error:
        raise ValueError(f"{source}: {str(error).removeprefix('--set=')}") from error


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, str]]:
    if prefix and dataclasses.is_dataclass(value):
        yield prefix, _class_name(type(value))
    if not dataclasses.is_dataclass(value):
        yield prefix, text_of(value)
        return
    for field in dataclasses.fields(value):
        path = f"{prefix}.{field.name}" if prefix else field.name
        yield from _leaves(getattr(value, field.name), path)


def text_of(value: Any) -> str:
    """A value as the text that `override` reads; foreign classes are written with their module.

    Numbers of NumPy, paths and lists are written as numbers, texts and tuples. A class is written
    as an object with its defaults.
    """
    if isinstance(value, type):
        return _class_name(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(text_of, value))}{',' if len(value) == 1 else ''})"
    if not dataclasses.is_dataclass(value):
        plain = value.item() if isinstance(value, np.generic) else value
        return repr(str(plain) if isinstance(plain, PurePath) else plain)
    fields = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
    return f"{_class_name(type(value))}({', '.join(f'{n}={text_of(v)}' for n, v in fields)})"


def foreign_modules(params: Any) -> tuple[str, ...]:
    """The modules outside this package that define classes of objects in the params."""
    modules = (type(one).__module__ for one in _objects(params) if not _is_ours(type(one)))
    return tuple(dict.fromkeys(modules))


def _objects(value: Any) -> Iterator[Any]:
    """The objects of dataclasses inside a value, without the value itself."""
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    for inner in value if isinstance(value, tuple) else [getattr(value, f.name) for f in fields]:
        if dataclasses.is_dataclass(inner):
            yield inner
        if dataclasses.is_dataclass(inner) or isinstance(inner, tuple):
            yield from _objects(inner)


def _class_name(cls: type) -> str:
    """`Top2`, or `my_gatings.Mine` for a class outside this package."""
    return cls.__name__ if _is_ours(cls) else f"{module_name(cls)}.{cls.__name__}"


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]
