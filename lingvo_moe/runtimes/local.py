"""One device: TensorFlow's own executor."""

import contextlib
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from lingvo_moe.nn.gradients import without_gradients
from lingvo_moe.nn.layer import EVALUATION, init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.one_process import check_not_forked
from lingvo_moe.runtimes.task import NOTHING, SearchRequest, Task
from lingvo_moe.training.checkpoint import check_tensors
from lingvo_moe.training.ladder import Ladder
from lingvo_moe.training.replicas import (
    Copy,
    order_after,
    relocate_experts,
    tensors_to_move,
)
from lingvo_moe.training.step import Compiling, TrainState, TrainStep

_GRAPHS = 32  # of requests, that are kept
_ROWS, _MATRIX = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)


class Local:
    """Holds the state in variables of one device and compiles the step with tf.function."""

    def __init__(self, task: Task, step: TrainStep | None = None):
        """Makes an empty runtime; `initialize` or `restore` fills it.

        Args:
            task: the model.
            step: the training step; None for decoding and evaluation only, which need no slots.

        Raises:
            RuntimeError: this process is a fork of one that ran TensorFlow.
        """
        check_not_forked()
        self._task, self._step = task, step
        self._decoder = task
        self._state: TrainState | None = None
        self._steps = step.on_rungs if step else ()
        self._train = [
            tf.function(functools.partial(self._train_and_assign, one), autograph=False)
            for one in self._steps
        ]
        self._ladder = Ladder(len(self._steps))
        self._evaluate = tf.function(without_gradients()(self._evaluate_batch), autograph=False)
        self._decode = functools.lru_cache(_GRAPHS)(self._compile_decode)
        self._laid_out: NestedMap | None = (
            None  # weights laid out for decoding; None after they change
        )
        self._score, self._routes = (
            tf.function(
                without_gradients()(function),
                autograph=False,
                input_signature=[_MATRIX, _ROWS, _MATRIX, _ROWS, _ROWS],
            )
            for function in (self._score_batch, self._routes_batch)
        )

    def initialize(self, seed: int, given: Mapping[str, np.ndarray] = NOTHING) -> None:
        """Initializes the state. A second call initializes it again, without compiling again.

        Args:
            seed: of what is drawn.
            given: a part of the result of `state`, which is not drawn.

        Raises:
            ValueError: as `check_tensors`.
        """
        theta, slots = (init_theta(specs, seed) for specs in self._specs())
        self._assign(TrainState(tf.constant(0, tf.int64), theta, slots))
        self._fill(given, whole=False)

    def state(self) -> dict[str, tf.Tensor]:
        """The state by name: "step", "theta/…", "slots/…"; "ladder" if the step has rungs."""
        state = {name: variable.value() for name, variable in self._variables()}
        return state | self._ladder.state()

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Restores the result of `state`.

        Raises:
            ValueError: as `check_tensors`.
        """
        if self._state is None:
            self.initialize(0)
        self._fill(tensors, whole=True)

    def train(
        self, batch: Mapping[str, np.ndarray], compiling: Compiling = contextlib.nullcontext
    ) -> NestedMap:
        """Takes one step.

        Args:
            batch: see `packing.batch_of`.
            compiling: makes a context for the first run on each rung.

        Returns:
            The metrics, as tensors.
        """
        self._laid_out = None
        tensors = self.feed(batch)

        def step(rung):
            program = self._train[rung]
            known = program.experimental_get_tracing_count()
            with contextlib.nullcontext() if known else compiling():
                return program(tensors)

        return self._ladder.take(step)

    def feed(self, batch: Mapping[str, np.ndarray]) -> NestedMap:
        """The batch on the device."""
        return NestedMap({name: tf.constant(value) for name, value in batch.items()})

    def batch_rows(self, rows: int) -> np.ndarray:
        """bool [processes, B]: the rows of a batch that the devices of each process read."""
        return np.ones([1, rows], bool)

    def relocate(self, table: str, copies: Sequence[Copy]) -> None:
        """Copies experts of one layer from slot to slot, their optimizer state with them.

        Args:
            table: the path of its placement among the weights.
            copies: to make in order.
        """
        variables = dict(self._variables())
        self._laid_out = None
        placed = variables[f"theta/{table}"]
        order = order_after(copies, placed.shape.num_elements())
        for name in tensors_to_move(table, *self._specs()):
            variables[name].assign(tf.gather(variables[name], np.maximum(order, 0)))
        slots = np.append(placed, -1)[order]
        placed.assign(slots.reshape(placed.shape))

    def evaluate(self, batch: Mapping[str, np.ndarray]) -> NestedMap:
        """The metrics of a batch, in evaluation mode; changes nothing."""
        return self._evaluate(self.feed(batch))

    def translate(
        self,
        source_ids: np.ndarray,
        lengths: np.ndarray,
        tasks: np.ndarray | None = None,
        request: SearchRequest | None = None,
    ):
        """Decodes a batch of any size: int32 [B, L], [B] and [B]; see the task's `translate`.

        `tasks` may be None for models without a router by task. `request` None means the decoding
        of the task's params. A request is traced if its `graph` is new.
        """
        if self._laid_out is None:
            self._laid_out = self._hold(self._decoder.lay_out(self._averaged()))
        tasks = np.zeros_like(lengths) if tasks is None else tasks
        return self._translate(source_ids, lengths, tasks, request)

    def score(
        self,
        source_ids: np.ndarray,
        source_lengths: np.ndarray,
        target_ids: np.ndarray,
        target_lengths: np.ndarray,
        tasks: np.ndarray | None = None,
    ) -> tf.Tensor:
        """Log-probabilities of given translations, float32 [B, T]; see the task's `score`."""
        tasks = np.zeros_like(source_lengths) if tasks is None else tasks
        given = (source_ids, source_lengths, target_ids, target_lengths, tasks)
        return self._score(*map(tf.constant, given))

    def routes(self, *given: np.ndarray) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """The experts of the tokens of given translations; same arguments as `score`.

        See the task's `routes`.
        """
        return self._routes(*map(tf.constant, given))

    def _specs(self):
        """WeightSpecs of the weights and of the optimizer's slots."""
        weights = self._task.weights()
        return weights, self._step.optimizer.slots(weights) if self._step else NestedMap()

    def _variables(self):
        assert self._state, "call initialize or restore first"
        step, theta, slots = self._state
        return NestedMap(step=step, theta=theta, slots=slots).flatten()

    def _fill(self, tensors, whole):
        """Sets the variables that have a tensor; if `whole`, all must have one."""
        self._laid_out = None
        tensors = relocate_experts(tensors, *self._specs())
        variables = {n: v for n, v in self._variables() if whole or n in tensors}
        check_tensors(tensors, {name: tuple(v.shape) for name, v in variables.items()})
        for name, variable in variables.items():
            variable.assign(np.asarray(tensors[name]))
        self._ladder.restore(tensors)

    def _assign(self, state):
        if self._state is None:
            self._state = tf.nest.map_structure(tf.Variable, state)
        else:
            tf.nest.map_structure(lambda v, x: v.assign(x), self._state, state)

    def _read(self):
        return tf.nest.map_structure(lambda variable: variable.value(), self._state)

    def _averaged(self):
        """The weights for evaluation and decoding."""
        _, theta, slots = self._read()
        if self._step is None:
            return theta
        return self._step.optimizer.averaged(theta, slots, self._task.weights())

    def _train_and_assign(self, step, batch):
        state, metrics = step(self._read(), batch, _forward)
        tf.nest.map_structure(lambda v, x: v.assign(x, read_value=False), self._state, state)
        return metrics

    def _evaluate_batch(self, batch):
        return self._task.loss(
            self._averaged(), batch, self._task.num_targets(batch), EVALUATION
        ).metrics

    def _hold(self, laid_out):
        """The weights in the form in which programs of decoding get them: here arguments."""
        return laid_out

    def _translate(self, source_ids, lengths, tasks, request):
        given = map(tf.constant, (source_ids, lengths, tasks))
        request, inputs = request.split() if request else (None, {})
        inputs = {name: tf.constant(value) for name, value in inputs.items()}
        return self._decode(request)(self._laid_out, *given, inputs)

    def _compile_decode(self, request):
        @without_gradients()
        def decode(laid_out, source_ids, lengths, tasks, inputs):
            given = request and request.with_inputs(inputs)
            return self._decoder.decode(laid_out, source_ids, lengths, tasks, given)

        weights = tf.nest.map_structure(tf.TensorSpec.from_tensor, self._laid_out)
        inputs = request.split()[1] if request else {}
        specs = {n: tf.TensorSpec([None] * one.ndim, one.dtype) for n, one in inputs.items()}
        signature = [weights, _MATRIX, _ROWS, _ROWS, specs]
        return tf.function(decode, autograph=False, input_signature=signature)

    def _score_batch(self, *batch):
        return self._task.score(self._averaged(), *batch)

    def _routes_batch(self, *batch):
        return self._task.routes(self._averaged(), *batch)


def _forward(condition, new, old):
    """As training.step.select, but TensorFlow's executor passes the tensors on without a copy."""
    return tf.cond(condition, lambda: new, lambda: old)
