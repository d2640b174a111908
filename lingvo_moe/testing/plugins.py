"""Plug-ins of a test, which no other test may see."""

import contextlib
import sys
from collections.abc import Iterator

from lingvo_moe.config import plugins, registry


@contextlib.contextmanager
def forgotten_plugins() -> Iterator[None]:
    """No module counts as a plug-in at first; at the end the imported ones are forgotten.

    Their models are forgotten too, and `sys.path` is set back.
    """
    path, known = [*sys.path], dict(plugins._imported)
    plugins._imported.clear()
    try:
        yield
    finally:
        roots = {_root(module.__name__) for module in plugins._imported.values()}
        for name in [name for name in sys.modules if _root(name) in roots]:
            del sys.modules[name]
        for name, model in list(registry._registered.items()):
            if _root(model.__module__) in roots:
                del registry._registered[name]
        sys.path[:] = path
        plugins._imported.clear()
        plugins._imported.update(known)


def _root(name):
    return name.partition(".")[0]
