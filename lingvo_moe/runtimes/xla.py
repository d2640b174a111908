"""A runtime for one device, with decoding compiled by XLA.  B sentences, L tokens."""

from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_moe.nn.gradients import without_gradients
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.runtimes.local import Local
from lingvo_moe.runtimes.task import LEAST_LENGTH, Task, next_size
from lingvo_moe.training.step import TrainStep


class Xla(Local):
    """As Local, but XLA compiles beam search to one program for each shape of a batch.

    A step of the search has hundreds of short operations. XLA fuses them, so small batches are
    2 to 7 times as fast. Compiling takes seconds for each new shape, so rows and columns are padded
    to powers of two, and for new sizes of a search. Its other numbers are inputs. All experts are
    computed, not only the chosen ones.
    """

    def __init__(self, task: Task, step: TrainStep | None = None):
        """See Local; decoding uses `task.for_xla`."""
        super().__init__(task, step)
        self._decoder = task.for_xla(1)
        self._held: NestedMap | None = None

    def _hold(self, laid_out):
        """The weights in variables, which programs of decoding capture.

        As arguments they would take as long as the search, because they are many.
        """
        if self._held is None:
            self._held = tf.nest.map_structure(tf.Variable, laid_out)
        else:
            tf.nest.map_structure(lambda held, new: held.assign(new), self._held, laid_out)
        return self._held

    def _translate(self, source_ids, lengths, tasks, request):
        count, length = source_ids.shape
        # Additional rows repeat the first sentence, so they do not make the search longer.
        rows = np.concatenate([np.arange(count), np.zeros(next_size(count, 1) - count, int)])
        columns = next_size(length, LEAST_LENGTH) - length
        ids = np.pad(source_ids, [(0, 0), (0, columns)])
        given = (tf.constant(values[rows]) for values in (ids, lengths, tasks))
        request, numbers = request.split(static=True) if request else (None, {})
        numbers = {name: tf.constant(value) for name, value in numbers.items()}
        output = self._decode(request)(*given, numbers)
        return tf.nest.map_structure(lambda x: None if x is None else np.asarray(x)[:count], output)

    def _compile_decode(self, request: Any):
        @without_gradients()
        def decode(source_ids, lengths, tasks, numbers):
            laid_out = tf.nest.map_structure(tf.convert_to_tensor, self._held)
            given = request and request.with_inputs(numbers)
            return self._decoder.decode(laid_out, source_ids, lengths, tasks, given)

        return tf.function(decode, autograph=False, jit_compile=True)
