"""The private modules of TensorFlow that the package uses; no other file imports any.

xla_sharding: annotations for XLA's partitioner. xla_optimization_barrier: keeps XLA from sharing a
computation across it. control_flow_util: whether a graph is compiled by XLA.
"""

from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_optimization_barrier
from tensorflow.python.compiler.xla.experimental import xla_sharding
from tensorflow.python.ops import control_flow_util

__all__ = ["control_flow_util", "xla_optimization_barrier", "xla_sharding"]
