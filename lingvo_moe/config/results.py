"""Checks of what plug-ins return. An interface declares at a method what its overrides return."""

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

from lingvo_moe.system.lines import printable

_PACKAGE = __name__.partition(".")[0]


def returns(rule: str, check: Callable[..., Any]) -> Callable[[Callable], Callable]:
    """A decorator for a method of an interface: what overrides in plug-ins return is checked. They
    must return `rule`; check(result, self, *arguments) gives the result to use, None or an error if
    it is wrong."""

    def declare(method):
        method.returns = rule, check
        return method

    return declare


def a_text(result: Any, *_: Any) -> str | None:
    """The check of a result that must be a text."""
    return result if isinstance(result, str) else None


def check_overrides(cls: type) -> None:
    """Makes the methods of a class outside this package check what they return."""
    if cls.__module__.partition(".")[0] == _PACKAGE:
        return
    for name, method in list(vars(cls).items()):
        overridden = (getattr(vars(base).get(name), "returns", None) for base in cls.__mro__[1:])
        if declared := next(filter(None, overridden), None):
            setattr(cls, name, _checked(name, method, *declared))


def wrong_result(owner: Any, method: str, rule: str) -> str:
    """The text of an error: a method of `owner`, of a plug-in, does not return what it must."""
    cls = type(owner)
    file = getattr(sys.modules.get(cls.__module__), "__file__", cls.__module__)
    return f"in the plug-in {file}: {cls.__name__}.{method} must return {rule}"


def _checked(name, method, rule, check):
    @functools.wraps(method)
    def call(self, *args, **kwargs):
        result = method(self, *args, **kwargs)
        with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError):
            if (used := check(result, self, *args, *kwargs.values())) is not None:
                return used
        found = printable(repr(result)[:100])
        raise ValueError(f"{wrong_result(self, name, rule)}; it returned {found}.")

    return returns(rule, check)(call)
