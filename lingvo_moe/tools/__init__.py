"""Command-line tools: flags, one call, print."""

import contextlib
import os
import sys
from collections.abc import Iterator

from lingvo_moe.core import console

console.install()

# A tool's standard error is for its user. TensorFlow's C++ side greets there at import and again
# when it first looks for devices, before its own log level is read.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# TensorFlow imports these if they are installed, for parts of it that nothing here uses. They take
# as long as TensorFlow itself. Tools that need JAX or matplotlib import them later.
_UNUSED = ("jax", "keras", "matplotlib")


@contextlib.contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    """Within it these modules look as if they were not installed."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules |= dict.fromkeys(hidden)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


with console.quiet(), _without(_UNUSED):
    import tensorflow as tf

    tf.config.list_logical_devices()
tf.get_logger().setLevel("WARNING")
