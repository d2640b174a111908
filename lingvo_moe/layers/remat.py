"""Rematerialisation: the backward pass recomputes values instead of keeping them."""

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from lingvo_moe.nn.gradients import custom_gradient
from lingvo_moe.nn.tensorflow_private import in_xla, xla_optimization_barrier


def rematerialized(fn: Callable[..., Any]) -> Callable[..., Any]:
    """fn with rematerialisation: only its arguments and results are kept for the backward pass.

    Chen et al. 2016 (arXiv 1604.06174) trade a second forward pass for memory. The results equal
    those of fn. Random draws of fn must depend on its arguments. Tensors that fn captures from
    outside get no gradient, and a compiler may share their computation with the forward pass.

    Args:
        fn: a pure function of structures (as of tf.nest) of tensors; other leaves are passed
            through.

    Returns:
        A function with fn's arguments and results.
    """

    def wrapped(*args):
        template, scope = [], tf.get_current_name_scope()

        def run(tensors):
            return fn(*with_tensors(args, tensors))

        @custom_gradient
        def call(*tensors):
            results = run(tensors)
            template.append(results)

            def gradients(*upstream):
                with tf.name_scope(f"{scope}/remat/".lstrip("/")):
                    return _gradients(run, tensors, upstream)

            return tensors_of(results), gradients

        results = call(*tensors_of(args))
        return with_tensors(template[0], results)

    return wrapped


def stop_gradients(structure: Any) -> Any:
    """The same tensors without gradients, for results of fn that need no second computation."""
    return tf.nest.map_structure(
        lambda leaf: tf.stop_gradient(leaf) if tf.is_tensor(leaf) else leaf, structure
    )


def tensors_of(structure: Any) -> list[tf.Tensor]:
    """The leaves of a structure that are tensors."""
    return [leaf for leaf in tf.nest.flatten(structure) if tf.is_tensor(leaf)]


def with_tensors(structure: Any, tensors: Iterable[tf.Tensor]) -> Any:
    """The structure with its tensors replaced by these, in order."""
    given = iter(tensors)
    flat = [next(given) if tf.is_tensor(leaf) else leaf for leaf in tf.nest.flatten(structure)]
    return tf.nest.pack_sequence_as(structure, flat)


def _gradients(run, tensors, upstream):
    """The gradient of each tensor; None for integers."""
    tensors, upstream = _after(tensors, upstream)
    floats = [i for i, tensor in enumerate(tensors) if tensor.dtype.is_floating]
    with tf.GradientTape() as tape:
        sources = [tensors[i] for i in floats]
        tape.watch(sources)
        results = tensors_of(run(tensors))
    targets = [i for i, result in enumerate(results) if result.dtype.is_floating]
    found = tape.gradient(
        [results[i] for i in targets], sources, output_gradients=[upstream[i] for i in targets]
    )
    gradients = dict(zip(floats, found, strict=True))
    return [gradients.get(i) for i in range(len(tensors))]


def _after(tensors, upstream):
    """The same tensors behind a barrier, so that the second forward pass stays separate.

    Otherwise common subexpression elimination could merge the two passes, or a scheduler could run
    the second one early; both would keep everything in memory. XLA respects barriers but not
    control dependencies; TensorFlow's executor respects control dependencies.
    """
    if in_xla():
        held = xla_optimization_barrier([*tensors, *upstream])
        for tensor, before in zip(held, [*tensors, *upstream], strict=True):
            tensor.set_shape(before.shape)
        return held[: len(tensors)], held[len(tensors) :]
    with tf.control_dependencies([gradient for gradient in upstream if gradient is not None]):
        return [tf.identity(tensor) for tensor in tensors], upstream
