"""Command-line tools: flags, one call, print."""

import contextlib
import os
from collections.abc import Iterator

# A tool's standard error is for its user. TensorFlow's C++ side greets there at import and again
# when it first looks for devices, before its own log level is read.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    saved = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


with _quiet():
    import tensorflow as tf

    tf.config.list_logical_devices()
tf.get_logger().setLevel("WARNING")
