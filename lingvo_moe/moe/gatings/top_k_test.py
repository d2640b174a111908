import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.moe.gatings.base import Extras
from lingvo_moe.moe.gatings.loss_free import LossFree
from lingvo_moe.moe.gatings.node_limited import NodeLimited
from lingvo_moe.moe.gatings.scores import Sigmoid
from lingvo_moe.moe.gatings.switch import Switch
from lingvo_moe.moe.gatings.top_2 import Top2
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.nn.layer import EVALUATION, Context
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.testing import slow_routing

TRAINING = Context(tf.constant([1, 2]))


def best_of_nodes(
    logits: np.ndarray, bias: np.ndarray, k: int, nodes: int, kept: int, scale: float
) -> list[tuple[int, float]]:
    """[(expert, weight)] of one token: DeepSeek-V3's equations 12 to 16, bias, few nodes.

    Args:
        logits: [E].
        bias: [E].
        k: K.
        nodes: N; experts are in N equal blocks.
        kept: number of nodes that a token may use.
        scale: factor of the normalised weights.
    """
    score = [1.0 / (1.0 + np.exp(-float(logit))) for logit in logits]
    order = [s + float(b) for s, b in zip(score, bias, strict=True)]
    size = len(logits) // nodes
    blocks = [list(range(n * size, (n + 1) * size)) for n in range(nodes)]
    most = -(-k // kept)
    worth = [sum(sorted((order[e] for e in block), reverse=True)[:most]) for block in blocks]
    allowed = sorted(range(nodes), key=lambda n: (-worth[n], n))[:kept]
    candidates = [e for n in sorted(allowed) for e in blocks[n]]
    experts = sorted(candidates, key=lambda e: (-order[e], e))[:k]
    total = sum(score[e] for e in experts)
    return [(e, scale * score[e] / total) for e in experts]


def assert_equal(one, other):
    tf.nest.map_structure(np.testing.assert_array_equal, tuple(one), tuple(other))


@pytest.mark.parametrize("name", slow_routing.CASES)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("normalize", [True, False])
def test_equals_the_slow_loop(name, k, normalize):
    logits, mask, capacity = slow_routing.case(name)
    k = min(k, logits.shape[-1])

    def best(g, s):
        return slow_routing.best(logits[g, s], k, normalize)

    routing = TopK(k=k, normalize=normalize).route(
        tf.constant(logits), tf.constant(mask), capacity, TRAINING
    )
    slow_routing.assert_routes(routing, best, logits, mask, capacity, k)
    expected = slow_routing.balance(logits, mask)
    np.testing.assert_allclose(routing.aux_loss, expected, rtol=1e-5)


@pytest.mark.parametrize("name", [n for n in slow_routing.CASES if n != "single_expert"])
def test_top_2_evaluates_as_one_of_it(name):
    logits, mask, capacity = slow_routing.case(name)
    top_2 = Top2().route(logits, mask, capacity, EVALUATION)
    assert_equal(TopK(k=2).route(logits, mask, capacity, EVALUATION), top_2)


@pytest.mark.parametrize("name", slow_routing.CASES)
def test_switch_is_one_of_it(name):
    logits, mask, capacity = slow_routing.case(name)
    top_1 = TopK(k=1, normalize=False).route(logits, mask, capacity, TRAINING)
    assert_equal(top_1, Switch().route(logits, mask, capacity, TRAINING))


def test_third_choices_queue_last():
    # Two tokens rank the experts 0 1 2 and 2 1 0: each expert sees an early and a late choice.
    logits = tf.constant([[[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]])
    routing = TopK(k=3).route(logits, tf.ones([1, 2], tf.bool), 1, TRAINING)
    assert routing.expert.numpy().tolist() == [[[0, 1, 2], [2, 1, 0]]]
    assert routing.position.numpy().tolist() == [[[0, 0, 1], [0, 1, 1]]]
    assert routing.stats.drop_rate.numpy() == 0.5


def test_more_choices_than_experts_fail():
    with pytest.raises(
        ValueError, match=r"k=5 must not exceed .* experts, 4; lower k, or raise moe.num_e"
    ):
        TopK(k=5).route(tf.zeros([1, 2, 4]), tf.ones([1, 2], tf.bool), None, TRAINING)


def test_bad_policy():
    with pytest.raises(ValueError, match=r"k must be >= 1, got 0"):
        TopK(k=0)


def nodes_of(experts):
    return max(1, experts // 2)


@pytest.mark.parametrize("name", slow_routing.CASES)
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("context", [TRAINING, EVALUATION])
def test_sigmoid_scores_bias_and_nodes_equal_the_slow_loop(name, k, context):
    logits, mask, capacity = slow_routing.case(name)
    experts = logits.shape[-1]
    k, nodes = min(k, experts), nodes_of(experts)
    kept = max(-(-k * nodes // experts), nodes // 2, 1)
    bias = np.resize(np.array([0.3, -0.2, 0.05, -0.2], np.float32), experts)
    gating = TopK(
        k=k,
        scores=Sigmoid(),
        scale=2.5,
        bias=LossFree(),
        limit=NodeLimited(nodes=nodes, kept=kept),
    )
    extras = Extras(state=NestedMap(bias=tf.constant(bias)))
    routing = gating.route(tf.constant(logits), tf.constant(mask), capacity, context, extras)

    def best(g, s):
        return best_of_nodes(logits[g, s], bias, k, nodes, kept, 2.5)

    slow_routing.assert_routes(routing, best, logits, mask, capacity, k)
    counts = np.zeros(experts)
    for g, s in np.argwhere(mask):
        counts[[expert for expert, _ in best(g, s)]] += 1
    np.testing.assert_array_equal(routing.stats.choices, counts)


def test_a_bias_changes_the_choice_and_not_the_weight():
    # Scores 0.9, 0.6, 0.5; a bias of 0.5 makes the last the first: 0.5 / (0.5 + 0.9).
    logits = tf.constant([[[np.log(9), np.log(1.5), 0.0]]], tf.float32)
    gating = TopK(k=2, scores=Sigmoid(), bias=LossFree())
    extras = Extras(state=NestedMap(bias=tf.constant([0.0, 0.0, 0.5])))
    with tf.GradientTape() as tape:
        tape.watch((logits, extras.state.bias))
        routing = gating.route(logits, tf.ones([1, 1], tf.bool), None, TRAINING, extras)
    assert routing.expert.numpy().tolist() == [[[2, 0]]]
    np.testing.assert_allclose(routing.weight[0, 0], [0.5 / 1.4, 0.9 / 1.4], rtol=1e-6)
    assert tape.gradient(routing.weight, extras.state.bias) is None


def test_the_bias_follows_the_load():
    # Of 12 choices the mean is 3; the row of another layer of a scan has its own mean, 1.
    spec = LossFree(rate=0.25).spec(4).stacked(2, "Y")
    bias = spec.init(spec.shape, None)
    choices = tf.constant([[6.0, 3.0, 2.0, 1.0, 0.0], [1.0, 1.0, 2.0, 0.0, 0.0]])
    expected = [[-0.25, 0.0, 0.25, 0.25], [0.0, 0.0, -0.25, 0.25]]
    np.testing.assert_array_equal(spec.after_step(bias, choices), expected)


def test_scores_of_nothing_give_weights_of_nothing():
    # sigmoid(-200) is 0 in float32.
    logits, mask = tf.fill([1, 2, 4], -200.0), tf.ones([1, 2], tf.bool)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        routing = TopK(k=2, scores=Sigmoid()).route(logits, mask, None, TRAINING)
        total = tf.reduce_sum(routing.weight) + routing.aux_loss
    np.testing.assert_array_equal(routing.weight, np.zeros([1, 2, 2]))
    assert np.all(np.isfinite(tape.gradient(total, logits)))


@pytest.mark.parametrize(
    "gating",
    [
        TopK(k=2, scores=Sigmoid(), scale=2.5),
        TopK(k=2, scores=Sigmoid(), bias=LossFree()),
        TopK(k=2, normalize=False, bias=LossFree(), limit=NodeLimited(nodes=2, kept=1)),
    ],
    ids=str,
)
@pytest.mark.slow
def test_gradients_are_those_of_finite_differences(gating):
    rng = np.random.default_rng(3)
    apart = rng.permuted(np.tile(np.arange(4) * 0.5, (2, 5, 1)), axis=-1)
    logits = tf.constant(apart + 0.1 * rng.random(apart.shape), tf.float32)
    factors = tf.constant(rng.normal(size=[2, 5, 4]), tf.float32)
    extras = Extras(state=NestedMap(bias=tf.constant([0.0, 2.0, 0.0, -2.0])))

    def objective(logits):
        routing = gating.route(logits, tf.ones([2, 5], tf.bool), 3, TRAINING, extras)
        place = tf.one_hot(routing.expert, 4)
        return tf.einsum("GSK,GSKE,GSE->", routing.weight, place, factors) + routing.aux_loss

    symbolic, numeric = tf.test.compute_gradient(objective, [logits], delta=1e-2)
    np.testing.assert_allclose(symbolic[0], numeric[0], atol=5e-4)
    assert np.abs(symbolic[0]).max() > 0.01


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"nodes": 3, "kept": 1}, r"4 experts cannot be split into nodes=3 equal blocks; change"),
        ({"nodes": 4, "kept": 1}, r"kept=1 nodes of 1 experts have fewer than k=2; raise"),
        ({"nodes": 2, "kept": 3}, r"kept=3 nodes of 2; lower kept or raise nodes"),
    ],
)
def test_nodes_that_do_not_fit(limit, message):
    with pytest.raises(ValueError, match=message):
        TopK(k=2, limit=NodeLimited(**limit)).route(
            tf.zeros([1, 2, 4]), tf.ones([1, 2], tf.bool), None, TRAINING
        )


def test_one_choice_with_the_weight_1_would_have_no_gradient():
    with pytest.raises(ValueError, match="gives each choice the weight 1, so the router would"):
        TopK(k=1, bias=LossFree()).check(4)
