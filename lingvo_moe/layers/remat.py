"""Rematerialisation: values are computed again in the backward pass rather than kept until then."""

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from lingvo_moe.core.tensorflow_private import control_flow_util, xla_optimization_barrier


def rematerialized(fn: Callable[..., Any]) -> Callable[..., Any]:
    """fn, of whose work only arguments and results outlive the forward pass (Chen et al. 2016).

    The numbers are those of fn (arXiv 1604.06174 trades a second forward pass for memory). What fn
    draws at random must come from its arguments: what it captures from outside is neither
    differentiated nor kept from being shared with the forward pass.

    Args:
        fn: a pure function of structures (as of tf.nest) of tensors; leaves that are no tensors
            pass through.

    Returns:
        A function with fn's arguments and results.
    """

    def wrapped(*args):
        template, scope = [], tf.get_current_name_scope()

        def run(tensors):
            return fn(*with_tensors(args, tensors))

        @tf.custom_gradient
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
    """The same tensors without a gradient: results of fn that need no second computation."""
    return tf.nest.map_structure(
        lambda leaf: tf.stop_gradient(leaf) if tf.is_tensor(leaf) else leaf, structure
    )


def tensors_of(structure: Any) -> list[tf.Tensor]:
    """The tensors of a structure; its other leaves are left out."""
    return [leaf for leaf in tf.nest.flatten(structure) if tf.is_tensor(leaf)]


def with_tensors(structure: Any, tensors: Iterable[tf.Tensor]) -> Any:
    """The structure with these tensors, as many as it has, in place of its own."""
    given = iter(tensors)
    flat = [next(given) if tf.is_tensor(leaf) else leaf for leaf in tf.nest.flatten(structure)]
    return tf.nest.pack_sequence_as(structure, flat)


def _gradients(run, tensors, upstream):
    """The gradient of each of tensors, None for those of integers."""
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
    """The same tensors, which no compiler may take for the forward pass's own.

    Otherwise common subexpression elimination would merge the two passes, and a scheduler could
    run the second early; either keeps everything in memory. XLA heeds barriers and no control
    dependencies, TensorFlow's executor the reverse.
    """
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        held = xla_optimization_barrier([*tensors, *upstream])
        for tensor, before in zip(held, [*tensors, *upstream], strict=True):
            tensor.set_shape(before.shape)
        return held[: len(tensors)], held[len(tensors) :]
    with tf.control_dependencies([gradient for gradient in upstream if gradient is not None]):
        return [tf.identity(tensor) for tensor in tensors], upstream
