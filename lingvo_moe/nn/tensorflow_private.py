"""The private parts of TensorFlow that the package uses; no other file, tests included, uses any.

xla_sharding: annotations for XLA's partitioner. OpSharding: the proto of such an annotation.
xla_optimization_barrier: keeps XLA from sharing a computation across it. control_flow_util: whether
a graph is compiled by XLA. has_started: whether TensorFlow's threads run. SavedModelProto:
a SavedModel's file.
"""

from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_optimization_barrier
from tensorflow.compiler.xla.xla_data_pb2 import OpSharding
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel as SavedModelProto
from tensorflow.python.compiler.xla.experimental import xla_sharding
from tensorflow.python.eager import context
from tensorflow.python.ops import control_flow_util

__all__ = [
    "OpSharding",
    "SavedModelProto",
    "control_flow_util",
    "has_started",
    "xla_optimization_barrier",
    "xla_sharding",
]


def has_started() -> bool:
    """Whether TensorFlow has run anything in this process, or before it was forked."""
    return context.context()._initialized
