"""The private parts of TensorFlow that the package uses; no other file, tests included, uses any.

xla_sharding: annotations for XLA's partitioner. OpSharding: the proto of such an annotation.
xla_optimization_barrier: keeps XLA from sharing a computation across it. SavedModelProto: a
SavedModel's file.
"""

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_optimization_barrier
from tensorflow.compiler.xla.xla_data_pb2 import OpSharding
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel as SavedModelProto
from tensorflow.python.compiler.xla.experimental import xla_sharding
from tensorflow.python.eager import context
from tensorflow.python.ops import control_flow_util

__all__ = [
    "OpSharding",
    "SavedModelProto",
    "has_started",
    "in_xla",
    "xla_optimization_barrier",
    "xla_sharding",
]


def in_xla() -> bool:
    """Whether the graph that is being built is one that XLA will compile."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def has_started() -> bool:
    """Whether TensorFlow has run anything in this process, or before it was forked."""
    return context.context()._initialized
