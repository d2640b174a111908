"""Functions of an exported graph, and checks in it."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from lingvo_moe.decoding.fitted import FITTED
from lingvo_moe.decoding.params import RANGES
from lingvo_moe.decoding.request import OWN
from lingvo_moe.nn.gradients import without_gradients


def checked(values: Any, condition: tf.Tensor, message: str) -> Any:
    """The tensors; if the condition bool [] is false, the graph ends with InvalidArgumentError.

    What is computed from the result runs after the check, so no other error can come first.
    """
    # A tf.debugging.assert_… would add two functions to the graph.
    with tf.control_dependencies([tf.raw_ops.Assert(condition=condition, data=[message])]):
        return tf.nest.map_structure(tf.identity, values)


def checked_numbers(options: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The options of a request; the graph ends with an error if a number is out of range."""
    fits = [
        (options[name] >= (OWN if name in FITTED else least)) & (options[name] <= most)
        for name, (least, most) in RANGES.items()
    ]
    fits += [(options["top_p"] > 0) & (options["top_p"] <= 1)]
    others = ("min_length", "no_repeat_ngram", "temperature", "top_k")
    fits += [options[name] >= 0 for name in others] + [options["temperature"] < math.inf]
    ranges = ", ".join(f"{name} {least} to {most}" for name, (least, most) in RANGES.items())
    return checked(
        dict(options),
        tf.reduce_all(fits),
        f"An option is out of range. Allowed: {ranges}, 0 < top_p <= 1, other numbers >= 0 and "
        f"finite.",
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
