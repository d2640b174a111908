"""Position-wise feed-forward networks.  E experts, R rows, M model, H hidden."""

import dataclasses

import tensorflow as tf

from lingvo_moe.core.layer import Layer, Uniform, WeightSpec, stacked
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.sharding.annotations import annotate


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedForward(Layer):
    """relu(x·wi)·wo, without biases; with `num_experts` set, that many such networks side by side.

    Attributes:
        model_dim: M.
        hidden_dim: H.
        num_experts: E, or None for one plain network.
    """

    model_dim: int
    hidden_dim: int
    num_experts: int | None = None

    def weights(self):
        """Theta: wi [E, M, H] and wo [E, H, M] (no E for a plain network), uniform ±√(3/fan_in).

        The fan-in is that of one expert.
        """
        m, h = self.model_dim, self.hidden_dim
        weights = NestedMap(
            wi=WeightSpec((m, h), Uniform((3.0 / m) ** 0.5), "MH"),
            wo=WeightSpec((h, m), Uniform((3.0 / h) ** 0.5), "HM"),
        )
        return weights if self.num_experts is None else stacked(weights, self.num_experts, "E")

    def fprop(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """Applies the network, or expert e to rows e.

        Args:
            theta: as `weights`; a plain network also takes the slice of one expert.
            inputs: [R, M], or [E, R, M] for experts.

        Returns:
            The shape and type of inputs.
        """
        rows = "R" if inputs.shape.rank == 2 else "ER"
        hidden = tf.nn.relu(tf.matmul(inputs, theta.wi))
        return tf.matmul(annotate(hidden, rows + "H"), theta.wo)
