import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.core.layer import Context
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.gatings.balanced import Balanced
from lingvo_moe.gatings.base import Extras
from lingvo_moe.gatings.expert_choice import ExpertChoice
from lingvo_moe.gatings.hashed import Hash
from lingvo_moe.gatings.loss_free import LossFree
from lingvo_moe.gatings.on_node import OnNode
from lingvo_moe.gatings.scores import Sigmoid
from lingvo_moe.gatings.switch import Switch
from lingvo_moe.gatings.top_2 import Top2
from lingvo_moe.gatings.top_k import TopK
from lingvo_moe.testing import slow_routing

TRAINING = Context(tf.constant([1, 2]))


def on_node(best, node, size):
    """Choices of the node's experts, by their numbers among all."""
    return [(node * size + expert, weight) for expert, weight in best]


@pytest.mark.parametrize("name", slow_routing.CASES)
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_equals_the_slow_loop_on_the_experts_of_a_node(name, k, nodes):
    """A group g sees the logits of the block g mod N; with k = 4 and one node all of them."""
    logits, mask, capacity = slow_routing.case(name)
    experts = logits.shape[-1]
    nodes = min(nodes, experts)
    size = experts // nodes
    k = min(k, size)

    def own(g):
        return slice(g % nodes * size, (g % nodes + 1) * size)

    def best(g, s):
        return on_node(slow_routing.best(logits[g, s, own(g)], k, True), g % nodes, size)

    room = capacity and min(nodes * capacity, logits.shape[1])
    routing = OnNode(gating=TopK(k=k), nodes=nodes).route(
        tf.constant(logits), tf.constant(mask), capacity, TRAINING
    )
    slow_routing.assert_routes(routing, best, logits, mask, room, k)
    counts = np.zeros(experts)
    for g, s in np.argwhere(mask):
        counts[[expert for expert, _ in best(g, s)]] += 1
    np.testing.assert_array_equal(routing.stats.choices, counts)
    of_groups = [
        slow_routing.balance(logits[[g]][..., own(g)], mask[[g]]) for g in range(len(mask))
    ]
    expected = np.mean([loss for loss, real in zip(of_groups, mask, strict=True) if real.any()])
    np.testing.assert_allclose(routing.aux_loss, expected, rtol=1e-5)


@pytest.mark.parametrize("name", slow_routing.CASES)
def test_a_bias_is_that_of_the_nodes_experts(name):
    logits, mask, capacity = slow_routing.case(name)
    experts = logits.shape[-1]
    nodes, k = min(2, experts), min(2, max(1, experts // 2))
    size = experts // nodes
    bias = np.resize(np.array([0.3, -0.2, 0.05, 0.6], np.float32), experts)

    def best(g, s):
        own = slice(g % nodes * size, (g % nodes + 1) * size)
        chosen = slow_routing.best_of_nodes(logits[g, s, own], bias[own], k, 1, 1, 2.5)
        return on_node(chosen, g % nodes, size)

    gating = TopK(k=k, scores=Sigmoid(), scale=2.5, bias=LossFree())
    extras = Extras(state=NestedMap(bias=tf.constant(bias)))
    routing = OnNode(gating=gating, nodes=nodes).route(
        tf.constant(logits), tf.constant(mask), capacity, TRAINING, extras
    )
    room = capacity and min(nodes * capacity, logits.shape[1])
    slow_routing.assert_routes(routing, best, logits, mask, room, k)


def test_one_node_is_the_policy_itself():
    logits, mask, capacity = slow_routing.case("padding")
    for gating in (Top2(), TopK(k=3), ExpertChoice()):
        one = OnNode(gating=gating, nodes=1).route(logits, mask, capacity, TRAINING)
        other = gating.route(logits, mask, capacity, TRAINING)
        tf.nest.map_structure(np.testing.assert_array_equal, tuple(one), tuple(other))


POLICIES = (
    *(Top2(), TopK(k=2), TopK(k=1, scores=Sigmoid(), bias=LossFree())),
    *(Switch(), Balanced(), ExpertChoice(), Hash()),
)


@pytest.mark.parametrize("gating", POLICIES, ids=str)
def test_every_policy_stays_on_the_node_and_learns(gating):
    """Choices in the group's own block, and gradients as finite differences have them."""
    rng = np.random.default_rng(3)
    apart = rng.permuted(np.tile(np.arange(4) * 0.5, (4, 5, 1)), axis=-1)
    # Differences of two logits are at least 0.02 apart between tokens, so no order changes.
    unlike = 0.02 * rng.permutation(20).reshape(4, 5, 1)
    logits = tf.constant(apart + unlike * np.arange(4), tf.float32)
    mask = np.ones([4, 5], bool)
    mask[1, 2:4] = False
    factors = tf.constant(rng.normal(size=[4, 5, 4]), tf.float32)
    extras = Extras(
        tf.constant(rng.integers(0, 9, [4, 5]), tf.int32),
        state=NestedMap(bias=tf.constant([0.0, 2.0, 0.0, -2.0])),
    )
    policy = OnNode(gating=gating, nodes=2)

    @tf.function(autograph=False)
    def objective(logits):
        routing = policy.route(logits, tf.constant(mask), 2, TRAINING, extras)
        place = tf.one_hot(routing.expert, 4)
        return tf.einsum("GSK,GSKE,GSE->", routing.weight, place, factors) + routing.aux_loss

    routing = policy.route(logits, tf.constant(mask), 2, TRAINING, extras)
    for g, s, k in np.argwhere(routing.dispatched.numpy()):
        assert routing.expert[g, s, k] // 2 == g % 2
        assert mask[g, s]
    symbolic, numeric = tf.test.compute_gradient(objective, [logits], delta=1e-2)
    np.testing.assert_allclose(symbolic[0], numeric[0], atol=5e-4)
    # Hash learns nothing.
    assert (np.abs(symbolic[0]).max() > 0.01) == (gating != Hash())
