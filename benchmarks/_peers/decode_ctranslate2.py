"""Peer: CTranslate2 decodes.  python benchmarks/_peers/decode_ctranslate2.py WEIGHTS TYPE

WEIGHTS is what decode_ours.py wrote for a model without experts. CTranslate2's specification of T5
is this package's dense model: pre-norm with RMS norms, no biases, unscaled queries, bucketed
relative positions, tied and scaled outputs. TYPE is a compute type such as float32 or int8.
"""

import os
import sys
import tempfile

import ctranslate2
import numpy as np
from _serve import SHAPE, STEPS, fingerprint, serve, sources
from ctranslate2.specs import common_spec, transformer_spec

_MAX_DISTANCE = 128


def main() -> None:
    """Answers requests on standard input; see _serve."""
    path, compute_type = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        spec = model_spec(dict(np.load(path)))
        spec.validate()
        spec.optimize()
        spec.save(directory)
        translator = ctranslate2.Translator(
            directory,
            compute_type=compute_type,
            intra_threads=int(os.environ["OMP_NUM_THREADS"]),
        )

    def step(batch=1, beam=1):
        results = translator.translate_batch(
            [[f"{i}" for i in row] for row in sources(batch)],
            beam_size=beam,
            min_decoding_length=STEPS,
            max_decoding_length=STEPS,
            disable_unk=True,
            suppress_sequences=[["<pad>"], ["<s>"]],
        )
        return fingerprint(np.array([[int(i) for i in r.hypotheses[0]] for r in results]))

    serve(step, f"CTranslate2 {ctranslate2.__version__}, {compute_type}")


def model_spec(weights: dict[str, np.ndarray]) -> transformer_spec.TransformerSpec:
    """CTranslate2's model of these weights."""
    spec = transformer_spec.TransformerSpec.from_config(
        (SHAPE["layers"], SHAPE["layers"]),
        SHAPE["num_heads"],
        pre_norm=True,
        relative_attention_bias=True,
        rms_norm=True,
    )
    for side in ("encoder", "decoder"):
        prefix = f"theta/{side}/"
        own = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
        _fill_stack(getattr(spec, side), own)
    spec.decoder.projection.weight = spec.decoder.embeddings.weight
    spec.decoder.scale_outputs = np.float32(SHAPE["model_dim"] ** -0.5)
    tokens = ["<pad>", "<s>", "</s>", "<unk>", *map(str, range(4, SHAPE["vocab_size"]))]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token = spec.config.decoder_start_token = "<s>"
    spec.config.eos_token, spec.config.unk_token = "</s>", "<unk>"
    return spec


def _fill_stack(spec, weights):
    table = weights["embedding/table"]
    embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    embeddings.weight = table
    spec.scale_embeddings = False
    spec.layer_norm.gamma = weights["norm/scale"]
    for i, layer in enumerate(spec.layer):
        own = {
            n[len("layer_00/") :]: w for n, w in weights.items() if n.startswith(f"layer_{i:02}")
        }
        parts = [["query", "key", "value"]]
        _fill_attention(layer.self_attention, own, "self_attention", parts)
        layer.self_attention.relative_attention_bias = weights["relative_bias/bias"]
        layer.self_attention.relative_attention_max_distance = np.int32(_MAX_DISTANCE)
        if hasattr(layer, "attention"):
            _fill_attention(layer.attention, own, "cross_attention", [["query"], ["key", "value"]])
        layer.ffn.layer_norm.gamma = own["norms/feed_forward/scale"]
        _fill_linear(layer.ffn.linear_0, own["feed_forward/wi"])
        _fill_linear(layer.ffn.linear_1, own["feed_forward/wo"])


def _fill_attention(spec, weights, name, products):
    spec.queries_scale = np.float32(1.0)
    spec.layer_norm.gamma = weights[f"norms/{name}/scale"]
    for linear, parts in zip(spec.linear, [*products, ["output"]], strict=True):
        _fill_linear(linear, np.concatenate([weights[f"{name}/{p}"] for p in parts], axis=1))


def _fill_linear(spec: common_spec.LinearSpec, weight):
    spec.weight = np.ascontiguousarray(weight.T)


if __name__ == "__main__":
    main()
