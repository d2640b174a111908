import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.decoding.flat_beam_search import search
from lingvo_moe.decoding.sampling import Sampling
from lingvo_moe.layers.attention import causal_bias
from lingvo_moe.nn.layer import EVALUATION
from lingvo_moe.nn.special_tokens import BOS, EOS
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.testing.slow_search import (
    assert_same,
    reference_search,
    request_of,
    sentences,
    tiny,
)

A, B = 4, 5


CONSTRAINTS = [
    {"min_length": 6},
    {"no_repeat_ngram": 3, "min_length": 9},
    {"prefix": (9, 9, 8)},
    {"repetition_penalty": 0.7, "min_length": 6},
    {"expected_ratio": 0.8, "length_penalty": 3.0, "min_length": 4},
    {"prefix": (4,) * 15},  # longer than any translation
    {"prefix": (8, 8, 8), "no_repeat_ngram": 2, "min_length": 5},
]


ALL = CONSTRAINTS[-1]


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=str)
def test_constraints_hold(constraint, beam_size):
    """In the graph of exports, which has them as inputs; all together also in one of their own."""
    search = {"length_ratio": 1.0, "length_offset": 5, "beam_size": beam_size, "n_best": 3}
    request = request_of(**search, **constraint)
    sources, exported = sentences([2, 6, 4]), tiny().search_as_exported
    found = [exported(sources, request)]
    if constraint is ALL and beam_size > 1:
        found.append(tiny().search(sources, request))
    for n, source in enumerate(sources):
        expected = reference_search(tiny(), source, request.params, request.prefix)
        expected += [([], -np.inf)] * (3 - len(expected))
        for hypotheses in (ours[n] for ours in found):
            assert_same(hypotheses, expected)
        assert_same(exported([source], request, padding=3)[0], expected)
    assert found[0] != exported(sources, request_of(**search)), "it should make a difference"


def test_samples_begin_with_the_prefix():
    drawn = Sampling(temperature=3.0)
    request = request_of((7, 5), no_repeat_ngram=1, n_best=4, length_ratio=1.0, sampling=drawn)
    [samples] = tiny().search_as_exported(sentences([6]), request)
    assert len({tuple(ids) for ids, _ in samples}) > 1
    for ids, _ in samples:
        assert ids[:2] == [7, 5]
        assert len(set(ids)) == len(ids)


def test_an_ngram_longer_than_any_translation_costs_nothing():
    """A loop of n rounds at each step would take hours."""
    free = {"n_best": 3, "length_ratio": 1.0, "min_length": 9}
    search = tiny().search_as_exported
    expected = search(sentences([4]), request_of(**free))
    assert search(sentences([4]), request_of(no_repeat_ngram=2**31 - 1, **free)) == expected


def test_requests_share_graphs():
    first = request_of((5,), min_length=3, sampling=Sampling(seed=1))
    other = request_of((9, 8), length_penalty=0.0, sampling=Sampling(seed=5))
    assert first.split()[0] == other.split()[0] != request_of((5,)).split()[0]


def test_xla_compiles_constraints():
    request = request_of((A,), n_best=4, no_repeat_ngram=1)
    table = tf.math.log(tf.constant([[0, 0, 0.1, 0, 0.5, 0.4]] * 6))

    def step_fn(token_ids, step, caches, visible, source):
        return tf.gather(table, token_ids), caches, None

    def run(steps):
        return search(step_fn, (), (), tf.constant([4]), tf.constant([9.0]), request, steps)

    expected = run(None)
    compiled = tf.function(run, jit_compile=True, autograph=False)(4)
    found = [[i for i in ids if i > EOS] for ids in compiled.ids[0].numpy().tolist()]
    assert found == [[A], [A, B], [], []]
    np.testing.assert_array_equal(compiled.ids, expected.ids)
    np.testing.assert_allclose(compiled.scores, expected.scores, rtol=1e-5)


@pytest.mark.parametrize(
    ("beam_size", "sampling"),
    [pytest.param(1, None, marks=pytest.mark.slow), (4, Sampling(temperature=2.0))],
)
def test_tokens_have_log_probs_and_the_source_that_they_looked_at(beam_size, sampling):
    length = {"length_ratio": 1.0, "length_offset": 4, "min_length": 3}
    request = request_of(beam_size=beam_size, n_best=3, tokens=True, sampling=sampling, **length)
    sources, seen = sentences([3, 6, 8, 8, 8]), set()
    output = tiny().output(sources, request)
    for source, *found in zip(sources, *output, strict=True):
        for ids, length, score, log_probs, places in zip(*found, strict=True):
            ids, places = ids[:length].tolist(), places[:length].tolist()
            rows = [tiny().next_log_probs(source, [ids[:i]])[0] for i in range(length)]
            expected = [row[token] for row, token in zip(rows, ids, strict=True)]
            np.testing.assert_allclose(log_probs[:length], expected, atol=1e-4)
            assert not log_probs[length:].any()
            if length:
                assert length >= 3
                np.testing.assert_allclose(sum(expected) / ((5 + length) / 6), score, 1e-4)
                assert places == looked_at(source, [BOS, *ids[:-1]])
            seen |= set(places)
    assert len(seen) >= 3
    for source, together in zip(sources, tiny().search(sources, request), strict=True):
        assert_same(tiny().search([source], request)[0], together)


def looked_at(source, inputs):
    """The source place with the largest attention in the first of two layers, mean over heads.

    By NumPy, but for the layers below; neither the first nor the last place counts.
    """
    model, theta = tiny().model, tiny().theta
    read, written = (
        Tokens(tf.constant([x]), tf.ones([1, len(x)], tf.int32)) for x in (source, inputs)
    )
    memory = model.encoder.fprop(theta.encoder, read, EVALUATION).outputs[0].numpy()
    decoder, position = model.decoder, tf.range(len(inputs))
    layer, own = decoder.layers["layer_00"], theta.decoder.layer_00
    bias = decoder.relative_bias.fprop(theta.decoder.relative_bias, position, position)
    x = decoder.embedding.lookup(theta.decoder.embedding, written.ids)
    args = "self_attention", own, x, None, bias + causal_bias(len(inputs)), EVALUATION
    x = layer._attention_branch(*args, written)
    x = layer.params.norm.fprop(own.norms.cross_attention, x)[0].numpy()
    attention = np.zeros([len(inputs), len(source)])
    for head in (slice(0, 8), slice(8, 16)):
        query, key = (np.asarray(own.cross_attention[name])[:, head] for name in ("query", "key"))
        scores = np.exp((x @ query) @ (memory @ key).T)
        attention += scores / scores.sum(axis=1, keepdims=True)
    return (attention[:, 1:-1].argmax(axis=1) + 1).tolist()
