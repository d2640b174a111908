"""Functions of an exported graph, and checks in it."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from lingvo_moe.core.gradients import without_gradients
from lingvo_moe.decoding.params import MAX_BEAM


def checked(value: tf.Tensor, condition: tf.Tensor, message: str) -> tf.Tensor:
    """The value; if the condition bool [] is false, an InvalidArgumentError with the message."""
    # A tf.debugging.assert_… would add two functions to the graph.
    with tf.control_dependencies([tf.raw_ops.Assert(condition=condition, data=[message])]):
        return tf.identity(value)


def check_numbers(value: tf.Tensor, numbers: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """The value, `checked` that the numbers of a request keep their rules."""
    beams = [numbers[name] for name in ("beam_size", "n_best")]
    fits = [(size >= 1) & (size <= MAX_BEAM) for size in beams]
    top_p = numbers["top_p"]
    fits += [numbers["length_offset"] >= 1, (top_p > 0) & (top_p <= 1)]
    others = ("length_penalty", "length_ratio", "min_length", "no_repeat_ngram", "temperature")
    fits += [numbers[name] >= 0 for name in (*others, "top_k")]
    return checked(
        value,
        tf.reduce_all(fits),
        f"An option has a wrong value: beam_size and n_best must be 1 to {MAX_BEAM}, length_offset "
        f">= 1, 0 < top_p <= 1, and other numbers >= 0; correct it.",
    )


def function_of(
    function: Callable[..., Any],
    specs: Mapping[str, tf.TensorSpec],
    defaults: Mapping[str, tf.Tensor] | None = None,
) -> tf.types.experimental.PolymorphicFunction:
    """A tf.function with named arguments, without custom gradients.

    Args:
        function: takes tensors by name.
        specs: name -> spec of each required argument.
        defaults: name -> default value of each optional argument. An optional argument of rank 1
            may have any size.
    """
    defaults = defaults or {}
    shapes = {name: spec.shape for name, spec in specs.items()}
    shapes |= {name: [None] * value.shape.rank for name, value in defaults.items()}
    given = {**specs, **defaults}

    @without_gradients()
    def call(*tensors):
        return function(**dict(zip(given, tensors, strict=True)))

    kind, none = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    vars(call)["__signature__"] = inspect.Signature(
        [inspect.Parameter(name, kind, default=defaults.get(name, none)) for name in given]
    )
    signature = [tf.TensorSpec(shapes[name], value.dtype, name) for name, value in given.items()]
    return tf.function(call, autograph=False, input_signature=signature)
