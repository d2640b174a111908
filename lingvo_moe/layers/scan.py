"""Equal layers as one loop: the program's size does not grow with depth.

Y equal layers, stacked along the first dimension of their weights.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingvo_moe.layers.remat import tensors_of, with_tensors
from lingvo_moe.nn.gradients import custom_gradient
from lingvo_moe.nn.zeros import runtime_zeros

ScanBody = Callable[[Any, tf.Tensor, Any, Any], tuple[tf.Tensor, tf.Tensor, Any]]


def scan(
    body: ScanBody,
    theta: Any,
    inputs: tf.Tensor,
    shared: Any,
    each: Any,
    cut: Callable[[Any], Any] | None = None,
) -> tuple[tf.Tensor, tf.Tensor, Any]:
    """Runs Y layers in a loop; the gradient is a second loop.

    Only the inputs of each layer are kept for the backward loop, which computes the rest again
    (Chen et al. 2016, arXiv 1604.06174). The compiled program has one layer, at any depth.

    Args:
        body: (theta of a layer, its inputs, shared, each of a layer) -> (outputs like the inputs,
            loss float32 [], aside). It is traced several times, in separate graphs; tensors that it
            captures from outside get no gradient. aside is a structure (as of tf.nest) of tensors;
            leaves that are not tensors are passed on.
        theta: a structure of tensors [Y, …]; the floating ones are differentiated.
        inputs: of the first layer, with a static shape.
        shared: a structure that every layer reads; its floating tensors are differentiated, leaves
            that are not tensors are passed on.
        each: a structure of tensors [Y, …] that are not differentiated, such as seeds.
        cut: annotates how the gradient of theta is split over devices: takes a structure like
            theta and returns the same tensors. None for no annotation.

    Returns:
        The outputs of the last layer, the sum of the losses, and aside with a first dimension Y,
        without gradients.
    """
    loop = _Loop(body, theta, shared, each, cut)

    @custom_gradient
    def run(inputs, *tensors):
        outputs, loss, aside, kept = loop.forward(inputs, tensors)

        def gradients(outputs_gradient, loss_gradient, *_):
            with tf.name_scope("backward"):
                return loop.backward(kept, tensors, outputs_gradient, loss_gradient)

        return (outputs, loss, *aside), gradients

    outputs, loss, *aside = run(inputs, *loop.tensors)
    return outputs, loss, loop.pack_aside([tf.stop_gradient(tensor) for tensor in aside])


class _Loop:
    """The forward and the backward loop, on flat lists of the tensors of theta, shared and each."""

    def __init__(self, body, theta, shared, each, cut):
        self.body, self.theta, self.shared, self.each, self.cut = body, theta, shared, each, cut
        self.parts = [tensors_of(part) for part in (theta, shared, each)]
        self.tensors = [tensor for part in self.parts for tensor in part]
        self.length = self.tensors[0].shape[0]
        self.aside = None

    def forward(self, inputs, tensors):
        """Outputs, the sum of losses, aside stacked, and the inputs of each layer."""
        specs = self._aside_specs(inputs, tensors)

        def step(i, x, loss, kept, aside):
            kept = kept.write(i, x)
            x, layer_loss, results = self._layer(i, x, tensors)
            written = [a.write(i, r) for a, r in zip(aside, tensors_of(results), strict=True)]
            return i + 1, x, loss + layer_loss, kept, written

        arrays = self._array(inputs), [self._array(spec) for spec in specs]
        start = (tf.constant(0), inputs, tf.constant(0.0), *arrays)
        _, outputs, loss, kept, aside = self._while(step, start)
        return outputs, loss, [a.stack() for a in aside], kept.stack()

    def backward(self, kept, tensors, upstream, loss_gradient):
        """The gradients of inputs and of each tensor; None for tensors without one."""
        theta, shared, each = self._split(tensors)
        learned, read = _floats(theta), _floats(shared)

        def step(count, upstream, read_grads, learned_grads):
            i = self.length - 1 - count
            here, x = [w[i] for w in theta], kept[i]
            sources = [x, *(shared[j] for j in read), *(here[j] for j in learned)]
            with tf.GradientTape() as tape:
                tape.watch(sources)
                outputs, loss, _ = self._layer(i, x, [*here, *shared, *each], sliced=True)
            down, *grads = tape.gradient(
                [outputs, loss],
                sources,
                [upstream, loss_gradient],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            added = [total + grad for total, grad in zip(read_grads, grads, strict=False)]
            written = [
                array.write(i, tf.convert_to_tensor(grad))
                for array, grad in zip(learned_grads, grads[len(read) :], strict=True)
            ]
            return count + 1, tf.convert_to_tensor(down), added, written

        start = (
            tf.constant(0),
            upstream,
            [runtime_zeros(shared[j].shape, shared[j].dtype, upstream) for j in read],
            self._gradients(theta, learned, upstream),
        )
        _, down, added, written = self._while(step, start)
        found = dict(zip(learned, [array.stack() for array in written], strict=True))
        found |= {len(theta) + j: total for j, total in zip(read, added, strict=True)}
        return [down, *(found.get(i) for i in range(len(tensors)))]

    def pack_aside(self, tensors):
        """The structure of the body's aside, with these tensors."""
        return with_tensors(self.aside, tensors)

    def _layer(self, i, x, tensors, sliced=False):
        theta, shared, each = self._split(tensors)
        if not sliced:
            theta = [w[i] for w in theta]
        return self.body(
            with_tensors(self.theta, theta),
            x,
            with_tensors(self.shared, shared),
            with_tensors(self.each, [e[i] for e in each]),
        )

    def _split(self, tensors):
        first, second = len(self.parts[0]), len(self.parts[0]) + len(self.parts[1])
        return list(tensors[:first]), list(tensors[first:second]), list(tensors[second:])

    def _aside_specs(self, inputs, tensors):
        """The specs of aside for one layer, from a trace of the body that is not used."""
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in (inputs, *tensors)]

        def trace(x, *tensors):
            _, _, self.aside = self._layer(0, x, tensors)
            return tensors_of(self.aside)

        traced = tf.function(trace, autograph=False).get_concrete_function(*specs)
        return traced.structured_outputs

    def _gradients(self, theta, learned, computed):
        arrays = [self._array(theta[j][0]) for j in learned]
        if self.cut is None:
            return arrays
        # The initial zeros are annotated: a compiler merges equal zeros, so without this the
        # sharding of one weight could be used for another weight of the same shape.
        zeros = [runtime_zeros(w.shape, w.dtype, computed) for w in theta]
        zeros = tensors_of(self.cut(with_tensors(self.theta, zeros)))
        return [array.unstack(zeros[j]) for array, j in zip(arrays, learned, strict=True)]

    def _array(self, like):
        return tf.TensorArray(like.dtype, self.length, element_shape=like.shape)

    def _while(self, step, start):
        """Both loops count up from 0, so that the compiled program has the number of iterations."""
        return tf.while_loop(lambda i, *_: i < self.length, step, start, parallel_iterations=1)


def _floats(tensors: list[tf.Tensor]) -> list[int]:
    return [i for i, tensor in enumerate(tensors) if tensor.dtype.is_floating]
