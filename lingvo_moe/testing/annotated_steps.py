"""The annotated tensors of a training step with two MoE layers, and what it sends on a mesh."""

import functools

import tensorflow as tf

from lingvo_moe.jobs.training import train_step
from lingvo_moe.nn.layer import init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.sbp.annotations import use_mesh
from lingvo_moe.sbp.types import parse_mesh
from lingvo_moe.testing.training_on_mesh import MESH, make_batch, make_task
from lingvo_moe.training.step import TrainState


def _task(dispatcher, flags):
    """Without dropout, which is half of the operations."""
    training = f"model.moe.training={dispatcher}(groups=8)"
    return make_task([training, "model.dropout_rate=0.0", *flags.split()])


@functools.cache
def annotated(dispatcher, flags=""):
    """The number of annotated tensors of a traced step, gradients included, on any mesh."""
    task = _task(dispatcher, flags)
    step, weights, on = train_step(task), task.weights(), parse_mesh(MESH)

    def run(batch):
        with use_mesh(on, task.params.sharding.compute_rules(on)):
            slots = init_theta(step.optimizer.slots(weights), 0)
            state = TrainState(tf.constant(0, tf.int64), init_theta(weights, 0), slots)
            return step(state, NestedMap(batch))[1]

    traced = tf.function(run, autograph=False).get_concrete_function(make_batch(0))
    return str(traced.graph.as_graph_def()).count('op: "XlaSharding"')


def row_of(annotations, mesh, dispatcher, flags):
    """A row of few_annotations.csv: number, kind and bytes of a compiled step's collectives."""
    from lingvo_moe.runtimes.hlo import collectives, count, total_bytes
    from lingvo_moe.runtimes.lowering import Layout, batch_specs, partition_train_step, shapes

    tensors, task = annotated(dispatcher, flags), _task(dispatcher, flags)
    layout = Layout(parse_mesh(mesh), task.params.sharding)
    program, args = partition_train_step(train_step(task), batch_specs(make_batch(0)), layout)
    found = collectives(program.lower(*shapes(args)).compile().as_text())
    sizes = total_bytes(found)
    kinds = "; ".join(f"{n} {kind} {sizes[kind]}" for kind, n in count(found).items())
    row = [mesh, dispatcher, flags, annotations, tensors, kinds, sum(sizes.values())]
    return [str(value) for value in row]
