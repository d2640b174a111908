import numpy as np
import tensorflow as tf

from lingvo_moe.layers.transformer_layer import StackOutput
from lingvo_moe.moe.gatings.base import Routing
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.tasks.routing_metrics import routing_metrics, unused_experts

# Four tokens in two groups, two choices each; the last choice of token 1 found no room, token 3 is
# padding. Pairs: tokens 0 and 1 are of pair 1, token 2 of pair 0.
ROUTING = Routing(
    expert=tf.constant([[[0, 2], [2, 1]], [[1, 2], [0, 1]]]),
    position=tf.zeros([2, 2, 2], tf.int32),
    weight=tf.zeros([2, 2, 2]),
    dispatched=tf.constant([[[True, True], [True, False]], [[True, True], [False, False]]]),
    wanted=tf.constant([[2.0, 2.0], [2.0, 0.0]]),
    dropped=tf.constant([[0.0, 1.0], [0.0, 0.0]]),
    aux_loss=tf.constant(1.0),
    stats=NestedMap(),
    confidence=tf.constant([[0.5, 0.75], [0.25, 1.0]]),
)
PAIRS = tf.constant([[1, 1], [0, 0]])


def metrics(training, group_loads=False, tokens_choose=True):
    stats = NestedMap(
        {name: tf.constant(2.0) for name in ("entropy", "capacity")},
        aux_loss=tf.constant(1.0),
        z_loss=tf.constant(3.0),
        load=tf.zeros([3]),
        choices=tf.range(3.0),
        importance=tf.zeros([3]),
    )
    layers = NestedMap(encoder=NestedMap(layer_01=stats), decoder=NestedMap())
    routings = NestedMap(encoder=NestedMap(layer_01=ROUTING), decoder=NestedMap())
    output = StackOutput(tf.zeros([]), tf.zeros([]), layers, routings)
    ids = {"encoder": PAIRS, "decoder": None}
    return routing_metrics(output, ids, 2, tf.constant(10.0), training, group_loads, tokens_choose)


def test_counts_are_counts_and_means_are_weighted_by_tokens():
    result = metrics(training=False)
    np.testing.assert_array_equal(result.pair_wanted, [[2, 4]])
    np.testing.assert_array_equal(result.pair_dropped, [[0, 1]])
    np.testing.assert_array_equal(result.capacity, [20])
    np.testing.assert_array_equal(result.num_experts, [30])
    assert result.z_loss == 30.0
    # The choices of the experts page and of pruning are those before capacity.
    np.testing.assert_array_equal(result.pair_load, [[[0, 1, 1], [1, 1, 2]]])
    made = metrics(training=False, tokens_choose=False)
    np.testing.assert_array_equal(made.pair_load, [[[0, 1, 1], [1, 0, 2]]])
    # Tokens 0 (expert 0, gate 0.5) and 1 (expert 2, gate 0.75) are of pair 1, token 2 (expert 1,
    # gate 0.25) of pair 0; token 3 is padding.
    np.testing.assert_array_equal(made.pair_first, [[[0, 1, 0], [1, 0, 1]]])
    np.testing.assert_array_equal(made.pair_confidence, [[[0, 0.25, 0], [0.5, 0, 0.75]]])


def test_dear_counts_are_left_out_in_training():
    assert "pair_load" not in metrics(training=True)
    assert "group_load" not in metrics(training=True)
    loads = metrics(training=True, group_loads=True).group_load
    # Token 1's second choice is dropped, but counts as wanted; padding has no choices.
    np.testing.assert_array_equal(loads, [[[1, 1, 2], [0, 1, 1]]])


def test_unused_experts_by_hand():
    choices = tf.constant([[3.0, 0.0, 1.0], [0.0, 2.0, 0.0]])
    np.testing.assert_array_equal(unused_experts(choices, [3, 2]), [1, 1])
