import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.layers.attention import MultiHead
from lingvo_moe.layers.norm import LayerNorm
from lingvo_moe.layers.position import Rotary, Sinusoidal
from lingvo_moe.layers.transformer import Transformer
from lingvo_moe.layers.transformer_layer import TransformerParams
from lingvo_moe.moe.activation import GELU, SwiGLU
from lingvo_moe.moe.dispatch import Gather
from lingvo_moe.moe.experts import ExpertParams
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.moe.layer import MoEParams
from lingvo_moe.nn.layer import EVALUATION, Context, count_weights, init_theta
from lingvo_moe.nn.special_tokens import PAD
from lingvo_moe.nn.tokens import Tokens

SOURCE_VOCAB, TARGET_VOCAB = 19, 13
PARAMS = TransformerParams(
    num_encoder_layers=2,
    num_decoder_layers=2,
    model_dim=16,
    hidden_dim=24,
    num_heads=2,
    head_dim=8,
    moe=MoEParams(num_experts=4, expert=ExpertParams(hidden_dim=20)),
)
TRAINING = Context(tf.constant([1, 2]))


def transformer(**changes):
    return Transformer(
        params=dataclasses.replace(PARAMS, **changes),
        source_vocab_size=SOURCE_VOCAB,
        target_vocab_size=TARGET_VOCAB,
    )


MODEL = transformer()
THETA = init_theta(MODEL.weights(), 0)
# The layers of fairseq's models, with a decoder of another shape.
FAIRSEQ = transformer(
    norm=LayerNorm(),
    position=Sinusoidal(first=2),
    use_bias=True,
    scale_embedding=True,
    scale_attention=True,
    decoder_hidden_dim=12,
    decoder_num_heads=4,
    decoder_head_dim=5,
)

MODERN = transformer(position=Rotary(), attention=MultiHead(key_heads=1))


def random_theta(model):
    """Weights with biases other than 0."""
    rng = np.random.default_rng(0)
    theta = init_theta(model.weights(), 0)
    return theta.map(lambda w: w + rng.normal(size=w.shape, scale=0.1).astype(np.float32))


MODELS = pytest.mark.parametrize(
    ("model", "theta"),
    [(MODEL, THETA), *((one, random_theta(one)) for one in (FAIRSEQ, MODERN))],
    ids=["default", "fairseq", "modern"],
)


def sentence_pair(source_length, target_length, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(4, SOURCE_VOCAB, source_length), rng.integers(
        4, TARGET_VOCAB, target_length
    )


PAIRS = [sentence_pair(4, 3, 0), sentence_pair(2, 5, 1), sentence_pair(5, 1, 2)]


def row(pairs, source_length, target_length):
    """Source and target Tokens [1, …], the pairs packed into one row."""
    rows = []
    for side, length in enumerate([source_length, target_length]):
        ids = np.concatenate([pair[side] for pair in pairs])
        segments = np.repeat(np.arange(1, len(pairs) + 1), [len(pair[side]) for pair in pairs])
        rows += [np.pad(x, (0, length - len(x)))[None].astype(np.int32) for x in (ids, segments)]
    return Tokens(*map(tf.constant, rows[:2])), Tokens(*map(tf.constant, rows[2:]))


def logits(rows, context=EVALUATION, model=MODEL, theta=THETA):
    return model.fprop(theta, *rows, context).outputs


@MODELS
@pytest.mark.parametrize("padding", [0, 3])
def test_packed_sentences_equal_separate_ones(padding, model, theta):
    packed = logits(row(PAIRS, 11 + padding, 9 + padding), model=model, theta=theta)
    start = 0
    for pair in PAIRS:
        length = len(pair[1])
        alone = logits(row([pair], len(pair[0]), length), model=model, theta=theta)
        np.testing.assert_allclose(packed[:, start : start + length], alone, atol=1e-5)
        start += length


def test_padding_and_batch_mates_change_nothing():
    batch = [
        Tokens(*(tf.concat([getattr(one, f) for one in side], 0) for f in ("ids", "segments")))
        for side in zip(*(row([p], 8, 7) for p in PAIRS), strict=True)
    ]
    together = logits(batch)
    for b, pair in enumerate(PAIRS):
        length = len(pair[1])
        alone = logits(row([pair], len(pair[0]), length))
        np.testing.assert_allclose(together[b, :length], alone[0], atol=1e-5)


def test_later_target_tokens_change_nothing_earlier():
    source, target = row(PAIRS[1:2], 2, 5)
    changed = tf.concat([target.ids[:, :3], 4 + (target.ids[:, 3:] - 3) % 9], axis=1)
    before = logits([source, target])
    after = logits([source, target._replace(ids=changed)])
    np.testing.assert_allclose(before[:, :3], after[:, :3], atol=1e-6)
    assert np.abs(before - after)[:, 3:].max() > 1e-3


def test_every_source_token_counts():
    source, target = row(PAIRS[:1], 4, 3)
    before = logits([source, target])
    for i in range(4):
        changed = tf.where(tf.range(4) == i, 4 + (source.ids - 3) % 15, source.ids)
        after = logits([source._replace(ids=changed), target])
        assert np.abs(after - before).max() > 1e-4


def test_randomness_is_off_in_evaluation_and_follows_the_seed_in_training():
    rows = row(PAIRS, 12, 12)
    np.testing.assert_array_equal(logits(rows, TRAINING), logits(rows, TRAINING))
    other = Context(tf.constant([1, 3]))
    assert np.abs(logits(rows, TRAINING) - logits(rows, other)).max() > 1e-2
    assert np.abs(logits(rows, TRAINING) - logits(rows)).max() > 1e-2


def test_training_without_its_randomness_is_evaluation():
    gating = TopK(k=2)
    moe = dataclasses.replace(PARAMS.moe, gating=gating, training=Gather(capacity_factor=None))
    calm = transformer(dropout_rate=0.0, moe=moe)
    rows = row(PAIRS, 12, 12)
    np.testing.assert_allclose(logits(rows, TRAINING, calm), logits(rows), atol=1e-5)


@pytest.mark.parametrize(
    ("every_n", "expected"),
    [(1, [True] * 4), (2, [False, True, False, True]), (3, [False, False, True, False])],
)
def test_every_nth_layer_is_moe(every_n, expected):
    moe = MoEParams(num_experts=4, every_n=every_n)
    model = transformer(num_encoder_layers=4, num_decoder_layers=4, moe=moe)
    for stack in (model.encoder, model.decoder):
        assert [layer.is_moe for layer in stack.layers.values()] == expected
    weights = model.weights()
    assert ["gate" in weights.encoder[f"layer_{i:02d}"].feed_forward for i in range(4)] == expected


def test_weights_are_counted():
    m, h, a, heads = 16, 24, 2 * 8, 2
    attention, dense = 4 * m * a, 2 * m * h
    moe = m * 4 + 4 * 2 * m * 20
    stack = 32 * heads + m  # relative bias, final norm
    encoder = stack + SOURCE_VOCAB * m + 2 * (attention + 2 * m) + dense + moe
    decoder = stack + TARGET_VOCAB * m + 2 * (2 * attention + 3 * m) + dense + moe
    assert count_weights(MODEL.weights()) == encoder + decoder


def test_statistics_and_balance_loss_come_from_the_moe_layers():
    output = MODEL.fprop(THETA, *row(PAIRS, 12, 12), EVALUATION)
    assert {side: list(stats) for side, stats in output.stats.items()} == {
        "encoder": ["layer_01"],
        "decoder": ["layer_01"],
    }
    assert output.stats.encoder.layer_01.load.shape == [4]
    # Two layers, each between 1 (balanced) and E = 4 (one expert takes all), near enough.
    assert 1.5 * 0.01 < output.moe_loss < 8.0 * 0.01
    dense = transformer(moe=None)
    output = dense.fprop(init_theta(dense.weights(), 0), *row(PAIRS, 12, 12), EVALUATION)
    assert output.moe_loss == 0.0
    assert output.stats == {"encoder": {}, "decoder": {}}


def test_weights_with_biases_are_counted():
    # In all: a matrix [i, o] has o more, a norm twice as many; there is no relative bias.
    attention = 4 * 16 * 16 + 3 * 16 + 16, 4 * 16 * 20 + 3 * 20 + 16  # of each side
    dense = 2 * 16 * 24 + 24 + 16, 2 * 16 * 12 + 12 + 16
    moe = 16 * 4 + 4 * (2 * 16 * 20 + 20 + 16)
    encoder = SOURCE_VOCAB * 16 + 2 * attention[0] + dense[0] + moe + 5 * 32
    decoder = TARGET_VOCAB * 16 + 4 * attention[1] + dense[1] + moe + 7 * 32
    assert count_weights(FAIRSEQ.weights()) == encoder + decoder


def test_sides_may_differ_in_experts():
    model = transformer(moe=dataclasses.replace(PARAMS.moe, decoder_num_experts=3))
    theta = init_theta(model.weights(), 0)
    stats = model.fprop(theta, *row(PAIRS, 12, 12), TRAINING).stats
    assert stats.encoder.layer_01.load.shape == [4]
    assert stats.decoder.layer_01.load.shape == [3]


def test_activations_of_dense_layers_and_of_experts():
    def hidden_weights(**changes):
        weights = transformer(**changes).weights().encoder
        dense, moe = weights.layer_00.feed_forward, weights.layer_01.feed_forward.experts
        return sorted(dense), sorted(moe)

    plain, gated = ["wi", "wo"], ["wg", "wi", "wo"]
    assert hidden_weights() == (plain, plain)
    assert hidden_weights(activation=SwiGLU()) == (gated, gated)
    moe = dataclasses.replace(PARAMS.moe, expert=ExpertParams(hidden_dim=20, activation=SwiGLU()))
    assert hidden_weights(moe=moe) == (plain, gated)
    gelu = logits(row(PAIRS, 12, 12), model=transformer(activation=GELU()))
    assert np.abs(gelu - logits(row(PAIRS, 12, 12))).max() > 1e-2


def test_padding_counts_in_no_statistic():
    exact = MODEL.fprop(THETA, *row(PAIRS, 11, 9), EVALUATION)
    padded = MODEL.fprop(THETA, *row(PAIRS, 30, 30), EVALUATION)
    np.testing.assert_allclose(padded.moe_loss, exact.moe_loss, rtol=1e-5)
    for (name, ours), (_, expected) in zip(
        padded.stats.flatten(), exact.stats.flatten(), strict=True
    ):
        if not name.endswith("capacity"):  # without a limit it is the size of the batch
            np.testing.assert_allclose(ours, expected, rtol=1e-5, err_msg=name)


@MODELS
def test_every_weight_learns(model, theta):
    rows = row(PAIRS, 12, 12)
    leaves = dict(theta.flatten())
    with tf.GradientTape() as tape:
        tape.watch(leaves)
        output = model.fprop(theta, *rows, TRAINING)
        loss = tf.reduce_sum(tf.square(output.outputs)) + output.moe_loss
    for name, gradient in tape.gradient(loss, leaves).items():
        assert gradient is not None, name
        if not name.endswith("key_bias"):  # it adds the same to all logits of a query
            assert np.abs(tf.convert_to_tensor(gradient)).max() > 0, name


def test_bfloat16_activations_are_close():
    rows = row(PAIRS, 12, 12)
    half = logits(rows, theta=THETA.map(lambda w: tf.cast(w, tf.bfloat16)))
    assert half.dtype == tf.float32
    assert np.abs(half - logits(rows))[0, :9].mean() < 0.05


def test_hypotheses_that_cannot_live_take_no_capacity():
    """Two sentences with one living hypothesis of four; an expert has room for both."""
    moe = dataclasses.replace(PARAMS.moe, evaluation=Gather(capacity_factor=1.0))

    def next_token(model, token_ids):
        laid_out = model.lay_out(THETA)
        lengths = tf.constant([3, 3])
        source = MODEL.encode(laid_out, tf.constant([[5, 6, 2], [7, 8, 2]]), lengths)
        caches = model.empty_caches(lengths, 4, tf.float32)
        own = tf.tile(tf.eye(4)[None] > 0, [2, 1, 1])
        return model.step(laid_out, token_ids, tf.constant(0), caches, own, source)[0]

    for token in range(4, TARGET_VOCAB):
        beam = tf.constant([[token, PAD, PAD, PAD]] * 2)
        found = next_token(transformer(moe=moe), beam)[:, 0]
        np.testing.assert_allclose(found, next_token(MODEL, beam)[:, 0], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_encoder_layers": 0}, "num_encoder_layers must be >= 1, got 0"),
        ({"hidden_dim": 0}, "hidden_dim must be >= 1, got 0"),
        ({"dropout_rate": 1.0}, r"dropout_rate must be in \[0, 1\), got 1.0"),
    ],
)
def test_bad_params(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(PARAMS, **change)


def test_a_shared_embedding_equals_two_equal_tables():
    params = dataclasses.replace(PARAMS, shared_embedding=True)
    shared = Transformer(params=params, source_vocab_size=13, target_vocab_size=13)
    separate = dataclasses.replace(shared, params=PARAMS)
    theta = init_theta(shared.weights(), 0)
    table = theta.encoder.embedding.table
    twice = init_theta(separate.weights(), 0)
    twice.encoder.embedding.table = table
    twice.decoder.embedding.table = table
    assert count_weights(separate.weights()) - count_weights(shared.weights()) == 13 * 16
    rows = [side._replace(ids=tf.math.minimum(side.ids, 12)) for side in row(PAIRS, 11, 9)]
    np.testing.assert_array_equal(
        logits(rows, model=shared, theta=theta), logits(rows, model=separate, theta=twice)
    )


def test_a_shared_embedding_needs_one_size():
    params = dataclasses.replace(PARAMS, shared_embedding=True)
    with pytest.raises(ValueError, match="one vocabulary size, got 19 and 13"):
        Transformer(params=params, source_vocab_size=19, target_vocab_size=13)
