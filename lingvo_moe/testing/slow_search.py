"""The flat beam search of a tiny model, and the same search in plain Python."""

import functools
import types
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_moe.decoding.flat_beam_search import beam_search
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.decoding.request import Request, numbers_of
from lingvo_moe.layers.transformer import Transformer
from lingvo_moe.layers.transformer_layer import TransformerParams
from lingvo_moe.moe.layer import MoEParams
from lingvo_moe.nn.gradients import without_gradients
from lingvo_moe.nn.layer import EVALUATION, init_theta
from lingvo_moe.nn.special_tokens import BOS, EOS, PAD
from lingvo_moe.nn.tokens import Tokens

IDS = tf.TensorSpec([None, None], tf.int32)


class Tiny:
    """A random MoE Transformer, sharpened so that its hypotheses differ, and its compiled parts."""

    def __init__(self, vocab_size, seed):
        self.model = Transformer(
            params=TransformerParams(
                num_encoder_layers=2,
                num_decoder_layers=2,
                model_dim=16,
                hidden_dim=32,
                num_heads=2,
                head_dim=8,
                moe=MoEParams(num_experts=4),
            ),
            source_vocab_size=20,
            target_vocab_size=vocab_size,
        )
        self.theta = init_theta(self.model.weights(), seed)
        self.theta.decoder.embedding.table *= 2.5
        self._fprop = tf.function(self._log_probs, input_signature=[IDS, IDS], autograph=False)
        self._laid_out = self.model.lay_out(self.theta)
        # The parts of the model are functions of their own: each search is traced without them.
        self._parts: Any = types.SimpleNamespace(
            encode=tf.function(self.model.encode, autograph=False, reduce_retracing=True),
            step=tf.function(self.model.step, autograph=False, reduce_retracing=True),
            empty_caches=self.model.empty_caches,
        )
        self._compiled = functools.cache(self._compile)

    @without_gradients()
    def _log_probs(self, source, prefixes):
        read, written = (Tokens(ids, tf.ones_like(ids)) for ids in (source, prefixes))
        logits = self.model.fprop(self.theta, read, written, EVALUATION).outputs
        return tf.nn.log_softmax(logits)

    def next_log_probs(self, source, prefixes):
        """float32 [K, V] after K prefixes of one length, each read from its beginning."""
        inputs = tf.constant([[BOS, *ids] for ids in prefixes])
        return self._fprop(tf.constant([source] * len(prefixes)), inputs).numpy()[:, -1]

    def _compile(self, graph, **specs):
        """The graph of a Request; of exports, which serves any request, without one."""

        @without_gradients()
        def translate(source, lengths, inputs):
            request = graph.with_inputs(inputs) if graph else Request.of_tensors(inputs)
            return beam_search(self._parts, self._laid_out, source, lengths, request)

        signature = [IDS, tf.TensorSpec([None], tf.int32), specs]
        return tf.function(translate, input_signature=signature, autograph=False)

    def output(self, sources, request, padding=0):
        """The BeamOutput of a batch of sentences of any lengths, as arrays."""
        graph, inputs = request.split()
        return self._run(self._compiled(graph, **_specs(inputs)), sources, inputs, padding)

    def _run(self, translate, sources, inputs, padding):
        width = max(map(len, sources)) + padding
        rows = np.array([s + [PAD] * (width - len(s)) for s in sources], np.int32)
        lengths = tf.constant([len(s) for s in sources])
        output = translate(tf.constant(rows), lengths, tf.nest.map_structure(tf.constant, inputs))
        return tf.nest.map_structure(np.asarray, output)

    def search(self, sources, request, padding=0):
        """[[(ids, score)]] for a batch of sentences of any lengths."""
        request = request if isinstance(request, Request) else Request(request)
        return _hypotheses(self.output(sources, request, padding))

    def search_as_exported(self, sources, request, padding=0):
        """`search` by the graph of exports, which serves any request."""
        inputs = numbers_of(request.params.filled())
        inputs["prefix"] = np.array(request.prefix, np.int32)
        translate = self._compiled(None, **_specs(inputs))
        return _hypotheses(self._run(translate, sources, inputs, padding))


def _specs(inputs):
    return {n: tf.TensorSpec([None] * one.ndim, one.dtype) for n, one in inputs.items()}


def _hypotheses(output):
    ids, lengths, scores = output[:3]
    return [
        [(ids[b, n, : lengths[b, n]].tolist(), scores[b, n]) for n in range(ids.shape[1])]
        for b in range(len(ids))
    ]


@functools.cache
def tiny(vocab_size=12, seed=3):
    return Tiny(vocab_size, seed)


def reference_search(model, source, params, prefix=()):
    """The same search in plain Python: a list of prefixes, no cache, no early end."""
    params = params.filled()
    longest = int(np.ceil(round(params.length_ratio * len(source), 4))) + params.length_offset
    longest = max(longest, len(prefix) + 1)
    living: list[tuple[Any, Any]] = [((), 0.0)]
    finished = []
    for length in range(1, longest + 1):
        log_probs = model.next_log_probs(source, [ids for ids, _ in living])
        counted = min(length, params.expected_ratio * len(source) or length)
        penalty = ((5 + counted) / 6) ** params.length_penalty
        grown = []
        for (ids, total), row in zip(living, log_probs, strict=True):
            if (ids or length == longest) and length >= max(
                min(params.min_length, longest), len(prefix) + 1
            ):
                finished.append(([*ids, EOS], (total + row[EOS]) / penalty))
            free, repetition = length > len(prefix), params.repetition_penalty
            grown += [
                ((*ids, v), total + row[v] - repetition * (free and v in ids))
                for v in range(4, len(row))
                if [v] == list(prefix[length - 1 : length])
                or (free and may_be_written([*ids, v], params))
            ]
        living = sorted(grown, key=lambda h: -h[1])[: params.beam_size]
    return sorted(finished, key=lambda h: -h[1])[: params.n_best]


def may_be_written(ids, params):
    """Whether the constraints allow the last of these tokens."""
    n = params.no_repeat_ngram
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return not (n and grams and grams[-1] in grams[:-1])


def request_of(prefix=(), **params):
    """A Request with a prefix in ids."""
    return Request(BeamSearchParams(**params), tuple(prefix))


def sentences(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(4, 20, n).tolist() for n in lengths]


def assert_same(ours, expected, tolerance=1e-4):
    assert [ids for ids, _ in ours] == [ids for ids, _ in expected]
    np.testing.assert_allclose([s for _, s in ours], [s for _, s in expected], atol=tolerance)
