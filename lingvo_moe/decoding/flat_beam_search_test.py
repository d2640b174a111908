import dataclasses
import functools
import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.config.plugins import import_plugins
from lingvo_moe.decoding.flat_beam_search import best_choices, search
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.decoding.request import Request
from lingvo_moe.decoding.sampling import Sampling
from lingvo_moe.layers.attention import MultiHead
from lingvo_moe.layers.norm import LayerNorm
from lingvo_moe.layers.position import Rotary, Sinusoidal
from lingvo_moe.nn.layer import EVALUATION, init_theta
from lingvo_moe.nn.special_tokens import BOS, EOS, PAD, UNK
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.testing.slow_search import assert_same, reference_search, sentences, tiny

A, B = 4, 5  # the words of the toy languages
SHARED, SEPARATE = 65, 1  # caches


@functools.cache
def toy_graph(graph):
    @tf.function(autograph=False, reduce_retracing=True)
    def run(table, max_lengths, inputs):
        def step_fn(token_ids, step, caches, visible, source):
            del step, visible, source
            return tf.gather(table, token_ids), caches, None

        request = graph.with_inputs(inputs)
        rewarded = request.params.rewarded(tf.ones_like(max_lengths))
        return search(step_fn, (), (), max_lengths, rewarded, request)

    return run


def toy_search(next_probs, max_lengths, spaces=(), **params):
    """Searches a bigram language: next_probs is {newest token: {next token: probability}}."""
    table = np.zeros([6, 6], np.float32)
    for newest, probs in next_probs.items():
        table[newest] = -np.inf
        for token, prob in probs.items():
            table[newest, token] = np.log(prob)
    request = Request(BeamSearchParams(**params), spaces=spaces)
    graph, inputs = request.split()
    inputs = tf.nest.map_structure(tf.constant, inputs)
    output = toy_graph(graph)(tf.constant(table), tf.constant(max_lengths), inputs)
    ids, lengths, scores = (x.numpy() for x in output[:3])
    return [
        [(ids[b, n, : lengths[b, n]].tolist(), scores[b, n]) for n in range(lengths.shape[1])]
        for b in range(len(max_lengths))
    ]


@pytest.mark.slow
def test_samples_from_the_best_token_are_the_argmax():
    params = BeamSearchParams(
        beam_size=1, length_ratio=1.0, length_offset=4, sampling=Sampling(top_k=1, seed=7)
    )
    sources, lengths = sentences([1, 2, 4, 6, 6, 3]), set()
    for source, [(ids, _)] in zip(sources, tiny().search(sources, params), strict=True):
        expected = []
        while EOS not in expected:
            row = tiny().next_log_probs(source, [expected])[0]
            row[[PAD, BOS, UNK, *([] if expected else [EOS])]] = -np.inf
            last = len(expected) + 1 == len(source) + 4
            expected.append(EOS if last else int(row.argmax()))
        assert ids == expected
        lengths.add(len(ids))
    assert len(lengths) >= 3, "the test wants translations of many lengths"


def test_the_longest_length_ends_by_eos_at_its_own_probability():
    # ln 0.1 = -2.30; ln(0.9 · 0.1) · 6/7 = -2.06; ln(0.81 · 0.1) · 6/8 = -1.88: longer is better.
    chain = {BOS: {A: 0.9, EOS: 0.1}, A: {A: 0.9, EOS: 0.1}}
    [[(ids, score)], [(short, _)]] = toy_search(chain, [3, 1], beam_size=2, length_penalty=1.0)
    assert ids == [A, A, EOS]
    np.testing.assert_allclose(score, np.log(0.081) * 6 / 8, rtol=1e-6)
    assert short == [EOS]
    [[(ids, _)]] = toy_search(chain, [3], beam_size=2, length_penalty=0.0)
    assert ids == [A, EOS]  # EOS alone is likelier, 0.1 and not 0.09, but has no word


def test_a_longer_translation_than_expected_gains_nothing():
    chain = {BOS: {A: 0.9, EOS: 0.1}, A: {A: 0.9, EOS: 0.1}}
    for ratio, length in ((0.0, 9), (4.0, 4), (20.0, 9)):  # the source has one token
        [[(ids, score)]] = toy_search(chain, [9], length_penalty=4.0, expected_ratio=ratio)
        assert len(ids) == length
        expected = np.log(0.1 * 0.9 ** (length - 1)) / ((5 + length) / 6) ** 4
        np.testing.assert_allclose(score, expected, rtol=1e-5)


def test_ties_go_to_the_lower_beam_and_id():
    even = {newest: {EOS: 1 / 3, A: 1 / 3, B: 1 / 3} for newest in (BOS, A, B)}
    [hypotheses] = toy_search(even, [3], beam_size=2, n_best=4, length_penalty=0.0)
    assert [ids for ids, _ in hypotheses] == [[A, EOS], [B, EOS], [A, A, EOS], [A, B, EOS]]


def test_what_was_not_found_is_empty():
    # One token leaves room for EOS alone.
    [hypotheses] = toy_search({BOS: {EOS: 0.5, A: 0.5}}, [1], n_best=3)
    np.testing.assert_allclose(hypotheses[0][1], np.log(0.5), rtol=1e-6)
    assert hypotheses[0][0] == [EOS]
    assert hypotheses[1:] == [([], -np.inf)] * 2


def test_pad_bos_and_unk_are_never_generated():
    tempting = {newest: {PAD: 0.3, BOS: 0.2, UNK: 0.3, A: 0.1, EOS: 0.1} for newest in (BOS, A)}
    [hypotheses] = toy_search(tempting, [5], beam_size=3, n_best=5)
    assert {i for ids, _ in hypotheses for i in ids} == {A, EOS}
    # Nothing is renormalised: the model's own log-probabilities count.
    scores = {len(ids): score for ids, score in hypotheses}
    np.testing.assert_allclose(scores[2], np.log(0.01) * 6 / 7, rtol=1e-6)


@pytest.mark.parametrize("kind", [int, tf.constant], ids=["static", "tensor"])
@pytest.mark.parametrize("max_count", [6, 10], ids=["in chunks", "among all"])  # 1280 = 2·10·64
def test_the_best_choices_of_many_are_those_of_a_sort(kind, max_count):
    # Whole numbers, so that there are ties: the lower id comes first, as in a stable sort.
    logits = np.random.default_rng(0).integers(0, 40, [3, 2, 1280]).astype(np.float32)
    choices = best_choices(tf.constant(logits), kind(6), max_count)
    order = np.argsort(-logits, axis=-1, kind="stable")[..., :6]
    np.testing.assert_array_equal(choices.ids, order)
    np.testing.assert_array_equal(choices.logits, np.take_along_axis(logits, order, axis=-1))
    np.testing.assert_allclose(choices.log_total, np.log(np.exp(logits).sum(-1)), rtol=1e-6)


@pytest.mark.parametrize(
    ("least", "beam_size", "alpha"),
    [
        *[(None, n, alpha) for n, alpha in ((1, 0.6), (2, 0.0), (5, 1.0), (8, 0.0))],
        *[(SHARED, 4, 0.0), (SEPARATE, 3, 1.0)],
        *[
            pytest.param(least, *of, marks=pytest.mark.slow)
            for least in (SHARED, SEPARATE)
            for of in [(1, 1.0), (3, 0.6), (6, 0.6), (7, 1.0), (8, 1.0)]
        ],
    ],
)
def test_equals_a_plain_beam_search(beam_size, alpha, least):
    """Without a cache in the graph of exports, for any beam size."""
    options = {"length_ratio": 1.0, "length_offset": 4, "length_penalty": alpha, "n_best": 3}
    params = BeamSearchParams(beam_size=beam_size, separate_caches_from=least or SHARED, **options)
    search = tiny().search if least else tiny().search_as_exported
    sources = sentences([1, 2, 4, 6, 6, 3])
    lengths = set()
    for source, hypotheses in zip(sources, search(sources, Request(params)), strict=True):
        assert_same(hypotheses, reference_search(tiny(), source, params))
        lengths |= {len(ids) for ids, _ in hypotheses}
    assert len(lengths) >= 3, "the test wants hypotheses of many lengths"


@pytest.mark.parametrize("sampling", [None, Sampling()])
def test_a_translation_has_a_word(sampling):
    # B is a piece that is only a space: B EOS and B B EOS would be empty texts.
    table = {n: {EOS: 0.9, B: 0.01, A: 0.09} for n in (BOS, A, B)}
    params = {"beam_size": 4, "n_best": 4, "length_penalty": 0.0, "sampling": sampling}
    [hypotheses] = toy_search(table, [9], spaces=(B,), **params)
    assert all(A in ids for ids, _ in hypotheses)
    if not sampling:
        assert hypotheses[0][0] == [A, EOS]
        np.testing.assert_allclose(hypotheses[0][1], np.log(0.081), rtol=1e-5)


def test_one_search_compares_length_penalties():
    penalties, sources = (0.0, 0.7, 1.5, 4.0), sentences([1, 2, 4, 6, 6, 3])
    params = BeamSearchParams(beam_size=3, length_ratio=1.0, length_offset=8, expected_ratio=1.5)
    together = tiny().search(sources, Request(params, penalties=penalties))
    for n, alpha in enumerate(penalties):
        one = Request(dataclasses.replace(params, length_penalty=alpha))
        alone = tiny().search_as_exported(sources, one)
        for found, [expected] in zip(together, alone, strict=True):
            assert_same([found[n]], [expected])
    assert len({len(ids) for found in together for ids, _ in found}) >= 3


@pytest.mark.parametrize("least", [None, SEPARATE])
def test_caches_grow_and_sentences_leave(least):
    # At most 46, 20 and 8 tokens: two sentences leave and the last one outgrows its cache twice.
    length = {"length_ratio": 2.0, "length_offset": 6}
    params = BeamSearchParams(beam_size=3, n_best=3, separate_caches_from=least or SHARED, **length)
    search = tiny().search if least else tiny().search_as_exported
    sources = sentences([1, 20, 7])
    found = search(sources, Request(params))
    for source, hypotheses in zip(sources, found, strict=True):
        assert_same(hypotheses, reference_search(tiny(), source, params))
    assert len(found[1][0][0]) > 16


def test_a_beam_wider_than_the_language_searches_all_of_it():
    # Two words and at most three of them: 2 + 4 + 8 sentences.
    probs = {BOS: {A: 0.6, B: 0.4}, A: {A: 0.2, B: 0.5, EOS: 0.3}, B: {A: 0.3, B: 0.1, EOS: 0.6}}
    expected = []
    for words in (w for n in (1, 2, 3) for w in itertools.product((A, B), repeat=n)):
        steps = itertools.pairwise((BOS, *words, EOS))
        total = sum(np.log(probs[before][after]) for before, after in steps)
        expected.append(([*words, EOS], total * 6 / (6 + len(words))))
    [found] = toy_search(probs, [4], beam_size=8, n_best=14, length_penalty=1.0)
    assert_same(found, sorted(expected, key=lambda one: -one[1]))


def test_a_translation_depends_on_its_sentence_alone():
    params = BeamSearchParams(n_best=3, length_offset=5)
    sources = sentences([1, 7, 3, 5, 2, 7, 4, 6], seed=1)
    alone = [tiny().search([source], params)[0] for source in sources]
    for batch in (sources, sources[::-1], sources[2:5]):
        for padding in (0, 6):
            for source, ours in zip(batch, tiny().search(batch, params, padding), strict=True):
                assert_same(ours, alone[sources.index(source)])


FAIRSEQ = {"norm": LayerNorm(), "position": Sinusoidal(first=2), "use_bias": True}
FAIRSEQ |= {"scale_embedding": True, "scale_attention": True, "decoder_num_heads": 4}
LAYERS = {
    "default": {},
    "fairseq": FAIRSEQ,
    "grouped": {"attention": MultiHead(key_heads=2), "num_heads": 4, "use_bias": True},
    "rotary": {"position": Rotary(base=100.0), "attention": MultiHead(key_heads=1)},
}


@pytest.mark.parametrize("layers", [*LAYERS.values(), "an example"], ids=[*LAYERS, "own"])
def test_steps_score_like_teacher_forcing(layers, fresh_plugins):
    # Three hypotheses of each of two sentences, written beside each other into one cache.
    model, theta = tiny().model, tiny().theta
    if layers == "an example":
        import_plugins([str(Path(__file__).parents[2] / "examples" / "own_attention.py")])
        layers = {"attention": sys.modules["own_attention"].SoftCap(cap=0.5)}
    if layers:
        model = dataclasses.replace(model, params=dataclasses.replace(model.params, **layers))
        noise = np.random.default_rng(3)
        theta = init_theta(model.weights(), 0).map(
            lambda w: w + noise.normal(size=w.shape, scale=0.1).astype(np.float32)
        )
    rng = np.random.default_rng(2)
    beams, steps = 3, 5
    source = rng.integers(4, 20, [2, 5]).astype(np.int32)
    targets = rng.integers(3, 12, [2, beams, steps]).astype(np.int32)
    source_lengths = tf.constant([5, 2])
    laid_out = model.lay_out(theta)
    encoded = model.encode(laid_out, tf.constant(source), source_lengths)
    caches = model.empty_caches(source_lengths, steps * beams, tf.float32)
    own = np.arange(steps * beams) % beams == np.arange(beams)[:, None]
    segments = tf.sequence_mask(source_lengths, 5, tf.int32)
    read = Tokens(*(np.repeat(x, beams, axis=0) for x in (source, segments)))
    rows = targets.reshape([2 * beams, steps])
    expected = model.fprop(theta, read, Tokens(rows, np.ones_like(rows)), EVALUATION).outputs
    expected = tf.reshape(expected, [2, beams, steps, -1])
    for t in range(steps):
        visible = np.broadcast_to(own & (np.arange(steps * beams) // beams <= t), [2, *own.shape])
        logits, caches, _ = model.step(
            laid_out, tf.constant(targets[..., t]), tf.constant(t), caches, visible, encoded
        )
        np.testing.assert_allclose(logits[..., :12], expected[:, :, t], atol=2e-4)


TWO_WORDS = {BOS: {A: 0.6, B: 0.3, UNK: 0.1}, A: {EOS: 1.0}, B: {EOS: 1.0}}


def share_of_a(**sampling):
    """Of A among 640 samples of A EOS or B EOS."""
    samples = [
        ids[0]
        for seed in range(10)
        for ids, _ in toy_search(
            TWO_WORDS, [3], beam_size=64, n_best=64, sampling=Sampling(seed=seed, **sampling)
        )[0]
    ]
    assert len(samples) == 640
    return samples.count(A) / 640


def test_samples_are_as_frequent_as_they_are_likely():
    # 0.6 of 0.9, because UNK is never drawn; the standard deviation of 640 draws is 0.019.
    np.testing.assert_allclose(share_of_a(), 2 / 3, atol=0.06)
    # Squared: 4 to 1.
    np.testing.assert_allclose(share_of_a(temperature=0.5), 0.8, atol=0.05)
    assert share_of_a(top_k=1) == share_of_a(temperature=1e-37) == 1.0
    tie = tf.constant([[[0.0, 2.0, 2.0, 1.0]]])
    kept = {
        Sampling(top_k=1, seed=seed).draw(tie, 0, tf.constant([0])).numpy().item()
        for seed in range(9)
    }
    kept |= {
        Sampling(top_p=0.3, seed=seed).draw(tie, 0, tf.constant([0])).numpy().item()
        for seed in range(9)
    }
    assert kept == {1}  # of equal ones the lowest
    # A alone has 2/3 of what can be drawn: enough for 0.6, not for 0.7.
    assert share_of_a(top_p=0.6) == 1.0
    assert share_of_a(top_p=0.7) < 0.8
    # The other word has half of A's probability, with a temperature of 0.5 a quarter.
    assert share_of_a(min_p=0.6) == share_of_a(min_p=0.3, temperature=0.5) == 1.0
    assert share_of_a(min_p=0.4) < 0.8


@pytest.mark.parametrize("top_p", [1.0, 0.999])
def test_samples_of_many_sentences_are_as_frequent_as_they_are_likely(top_p):
    sentences, words = 5000, 50  # many sentences have equal keys modulo the number of words
    keys = tf.constant(np.random.default_rng(1).integers(0, 2**31, sentences, np.int32))
    shares = 1 / np.arange(1.0, words + 1)
    expected = sentences * shares / shares.sum()
    logits = tf.broadcast_to(np.float32(np.log(shares)), [sentences, 1, words])
    drawn = Sampling(top_p=top_p, seed=1).draw(logits, 0, keys).numpy()[:, 0]
    counts = np.bincount(drawn, minlength=words)
    # Chi-square of 49 degrees of freedom: its standard deviation is 10.
    assert np.sum((counts - expected) ** 2 / expected) < 90


@pytest.mark.parametrize("length", [15, 20, 25, 30, 50, 85, 100])
@pytest.mark.parametrize("ratio", [0.6, 1.2, 2.2, 1.5])
def test_the_longest_length_is_the_same_in_the_graph(ratio, length):
    params = BeamSearchParams(length_ratio=ratio, length_offset=1)
    exact = math.ceil(round(ratio * length, 4)) + 1
    assert params.longest(length) == params.longest(tf.constant([length])).numpy()[0] == exact
