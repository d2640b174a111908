import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.nn.layer import EVALUATION, Context, init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.tiny_world import SHRINK


def task_with(gating):
    overrides = [*SHRINK, "model.moe.num_experts=4", f"model.moe.gating={gating}"]
    return TranslationTask(override(get_params("tiny.MoE"), overrides))


def random_batch():
    ids = tf.constant(np.random.default_rng(0).integers(3, 500, [4, 8]), tf.int32)
    segments = tf.cast(tf.sequence_mask([8, 5, 8, 2], 8), tf.int32)
    return NestedMap(
        source_ids=ids * segments,
        source_segment_ids=segments,
        target_inputs=ids * segments,
        target_ids=ids * segments,
        target_segment_ids=segments,
        source_pair_ids=tf.zeros_like(ids),
        target_pair_ids=tf.zeros_like(ids),
    )


def gradients_of(task, theta):
    """(name, gradient) of each weight, in training."""
    batch = random_batch()
    with tf.GradientTape() as tape:
        tape.watch(theta)
        output = task.loss(theta, batch, task.num_targets(batch), Context(tf.constant([1, 2])))
    gradients = tape.gradient(output.objective, theta)
    return [(name, tf.convert_to_tensor(gradient)) for name, gradient in gradients.flatten()]


GATINGS = [
    "Top2()",
    "Switch()",
    "TopK(k=3, normalize=False)",
    "ExpertChoice()",
    "Balanced(iterations=4)",
]


@pytest.mark.parametrize("gating", GATINGS)
def test_every_gating_is_known_to_set_and_trains(gating):
    task = task_with(gating)
    gradients = dict(gradients_of(task, init_theta(task.weights(), 0)))
    for name, gradient in gradients.items():
        assert np.all(np.isfinite(gradient)), name
    assert np.abs(gradients["encoder/layer_01/feed_forward/gate"]).max() > 0


def test_refuses_to_decode_with_a_gating_that_depends_on_the_batch():
    task = task_with("ExpertChoice()")
    theta, ids = init_theta(task.weights(), 0), tf.ones([1, 5], tf.int32)
    with pytest.raises(ValueError, match="got ExpertChoice"):
        task.translate(theta, ids, tf.constant([5]))


OPTIONS = (
    "model.moe.router.z_loss_weight=0.5",
    "model.moe.router.jitter=0.1",
    "model.moe.expert.dropout_rate=0.1",
    "model.moe.expert.mask_rate=0.2",
    "model.moe.shared=Gated(dropout_rate=0.2, loss_weight=0.1)",
    "model.moe.expert.activation=SwiGLU()",
    "model.moe.decoder_num_experts=3",
    "model.activation=GELU()",
)


def test_every_option_of_the_moe_layers_trains_and_decodes():
    task = task_with("Top2()")
    task = TranslationTask(override(task.params, OPTIONS))
    theta = init_theta(task.weights(), 0)
    for name, gradient in gradients_of(task, theta):
        assert np.all(np.isfinite(gradient)), name
        assert np.abs(gradient).max() > 0, name
    ids = random_batch().source_ids[:2, :5]
    both = task.translate(theta, ids, tf.constant([5, 3]))
    alone = task.translate(theta, ids[1:, :3], tf.constant([3]))
    np.testing.assert_allclose(both.scores[1], alone.scores[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("weight", "metric"), [("gate", "entropy"), ("shared_gate", "shared_gate")]
)
def test_gates_stay_float32_where_activations_are_bfloat16(weight, metric):
    """A relative change of 1/2048 is seen; bfloat16, of steps of 1/256, would round it off."""
    options = ["activation_dtype='bfloat16'", "model.moe.shared=Gated()"]
    task = TranslationTask(override(task_with("Top2()").params, options))
    batch, theta = random_batch(), dict(init_theta(task.weights(), 0).flatten())
    name = f"encoder/layer_01/feed_forward/{weight}"
    values = []
    for change in (0.0, 1 / 2048):
        rounded = tf.cast(tf.cast(theta[name], tf.bfloat16), tf.float32)
        changed = NestedMap.unflatten(theta | {name: rounded * (1 + change)})
        values.append(
            task.loss(changed, batch, task.num_targets(batch), EVALUATION).metrics[metric]
        )
    assert values[0][0] != values[1][0]


def test_the_objective_is_cross_entropy_and_the_weighted_losses():
    def loss(*overrides):
        exact = ["label_smoothing=0.0", "model.moe.gating.balance.weight=0.0", *overrides]
        task = TranslationTask(override(task_with("Top2()").params, exact))
        theta, batch = init_theta(task.weights(), 0), random_batch()
        return task.loss(theta, batch, task.num_targets(batch), EVALUATION)

    plain = loss()
    metrics = plain.metrics.map(lambda value: value / plain.metrics.tokens)
    np.testing.assert_allclose(plain.objective, metrics.nll, rtol=1e-6)
    # Two MoE layers; the metrics are means over them.
    weighted = loss("model.moe.gating.balance.weight=0.5", "model.moe.router.z_loss_weight=0.25")
    expected = metrics.nll + 2 * (0.5 * metrics.aux_loss + 0.25 * metrics.z_loss)
    np.testing.assert_allclose(weighted.objective, expected, rtol=1e-6)


def test_metrics_of_layers_of_different_width_are_padded():
    task = TranslationTask(
        override(task_with("Top2()").params, ["model.moe.decoder_num_experts=3"])
    )
    theta, batch = init_theta(task.weights(), 0), random_batch()
    metrics = task.loss(theta, batch, task.num_targets(batch), EVALUATION).metrics
    metrics = metrics.map(lambda value: value / metrics.tokens)
    assert task.moe_layers == ["encoder/layer_01", "decoder/layer_01"]
    np.testing.assert_array_equal(metrics.num_experts, [4, 3])
    for name in ("load", "importance"):
        np.testing.assert_allclose(tf.reduce_sum(metrics[name], axis=1), [1, 1], rtol=1e-6)
        assert metrics[name][1, 3] == 0.0
