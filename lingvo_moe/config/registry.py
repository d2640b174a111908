"""The registry of models: the class `MoE128E12L` in zoo/m4.py is the model `m4.MoE128E12L`."""

import difflib
import importlib
import pkgutil
from typing import Any

from lingvo_moe.config.plugins import module_name

_PACKAGE = "lingvo_moe.zoo"
_registered: dict[str, type] = {}


def register(cls: type) -> type:
    """Class decorator: registers a model under the name `module.Class`.

    The class has a docstring whose first line describes the model, and a method `params()`
    that returns its frozen params. It replaces a class of the same module and name, such as the
    same cell of a notebook before.

    Raises ValueError: a class of another module has the name.
    """
    module = module_name(cls).rpartition(".")[2]
    name = f"{module}.{cls.__name__}"
    if not cls.__module__.startswith(f"{_PACKAGE}.") and module in _modules():
        importlib.import_module(f"{_PACKAGE}.{module}")  # it may have a model of this name
    if name in _registered and _registered[name].__module__ != cls.__module__:
        raise ValueError(
            f"Model {name!r} is registered twice: in {_registered[name].__module__} and in "
            f"{cls.__module__}. Rename one of them."
        )
    _registered[name] = cls
    return cls


def find_model(name: str) -> type:
    """The registered class of that name; imports the one module that defines it. Raises
    ValueError: no such model; the message offers the nearest names."""
    if name not in _registered:
        module = name.partition(".")[0]
        if module in _modules():
            importlib.import_module(f"{_PACKAGE}.{module}")
    if name not in _registered:
        near = difflib.get_close_matches(name, all_names(), n=3, cutoff=0.4)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ValueError(f"Unknown model {name!r}.{hint} See lingvo-moe-models.")
    return _registered[name]


def get_params(name: str) -> Any:
    """The frozen params of a registered model. Raises ValueError: no such model."""
    return find_model(name)().params()


def describe(name: str) -> str:
    """The first line of a registered model's docstring; "" if Python has removed it (-OO)."""
    return (find_model(name).__doc__ or "").strip().partition("\n")[0]


def all_names() -> list[str]:
    """Sorted names of every model in the zoo; imports all of its modules."""
    for module in _modules():
        importlib.import_module(f"{_PACKAGE}.{module}")
    return sorted(_registered)


def _modules() -> list[str]:
    package = importlib.import_module(_PACKAGE)
    return [m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.endswith("_test")]
