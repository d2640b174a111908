"""Command-line tools: each parses flags, makes one call and prints."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from lingvo_moe.system import console

console.install()

# TensorFlow's C++ code logs to standard error at import and when it first lists devices, before it
# reads its own log level.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# TensorFlow imports these modules if they are installed, for features that are not used here. They
# take as long to import as TensorFlow itself. Tools that need JAX or matplotlib import them later.
_UNUSED = ("jax", "keras", "matplotlib")


@contextlib.contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    """Hides these modules, as if they were not installed, while the block runs."""
    hidden = [name for name in names if name not in sys.modules]
    absent: dict[str, Any] = dict.fromkeys(hidden)
    sys.modules |= absent
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


with console.quiet(), _without(_UNUSED):
    import tensorflow as tf

    tf.config.list_physical_devices()
tf.get_logger().setLevel("WARNING")
