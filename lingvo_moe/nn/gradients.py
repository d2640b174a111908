"""Custom gradients, which graphs without a gradient leave out."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

_left_out: contextvars.ContextVar[bool] = contextvars.ContextVar("left_out", default=False)


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Within this context functions have no custom gradients; it is also a decorator.

    TensorFlow never frees a graph with a custom gradient, and a SavedModel would store each of them
    as several functions. So what only evaluates or decodes is traced within this context.
    """
    token = _left_out.set(True)
    try:
        yield
    finally:
        _left_out.reset(token)


def custom_gradient(function: Callable[..., tuple[Any, Callable]]) -> Callable[..., Any]:
    """tf.custom_gradient; within `without_gradients` the function without its gradient."""
    differentiable = tf.custom_gradient(function)

    @functools.wraps(function)
    def call(*args):
        return function(*args)[0] if _left_out.get() else differentiable(*args)

    return call
