"""Export for CTranslate2 (https://github.com/OpenNMT/CTranslate2) of models without experts.

CTranslate2's specification of T5 equals this package's dense Transformer: pre-norm with RMS norms,
no biases, unscaled queries, bucketed relative distances, scaled outputs. It has no experts.

M model, H hidden, V vocabulary.
"""

import dataclasses
import json

import numpy as np

from lingvo_moe.config.fields import Params, short_repr
from lingvo_moe.config.params import text_of
from lingvo_moe.data.dataset import SIDES
from lingvo_moe.decoding.fitted import FITTED, UNFITTED
from lingvo_moe.inference.translator import part_pieces
from lingvo_moe.moe.activation import GEGLU, GELU, ReLU, SwiGLU
from lingvo_moe.nn.special_tokens import BOS, EOS, PAD, UNK
from lingvo_moe.serving.client import ABOUT
from lingvo_moe.serving.formats.base import Format
from lingvo_moe.serving.prune import unrolled
from lingvo_moe.tasks.model_dir import ModelDir

# Activation -> its name in CTranslate2.
_ACTIVATIONS = {ReLU(): "RELU", GELU(): "GELU", GEGLU(): "GELU", SwiGLU(): "SWISH"}
# Params of the model of which only the default is exported.
_DEFAULT_ALONE = (
    "moe",
    "norm",
    "position",
    "use_bias",
    "scale_embedding",
    "scale_attention",
    "decoder_hidden_dim",
    "decoder_num_heads",
    "decoder_head_dim",
    "attention",
)

# Params of decoding that the client carries out.
_CARRIED_OUT = ("beam_size", "length_offset", "min_length", "no_repeat_ngram")
# Those of a language are carried out too; the others do not change the best translation.
_NOT_NEEDED = (*FITTED, "n_best", "batch_tokens", "separate_caches_from")
_USUAL_LENGTH = 20  # of a translation, in tokens


@dataclasses.dataclass(frozen=True)
class CTranslate2(Format):
    """A model without experts for CTranslate2, and `translate.py`, a client.

    The search is CTranslate2's: it divides log P by length^β, with β = 0.8 α for which a
    translation of 20 tokens gains as much by one more token as with `length_penalty` α. It counts
    all tokens, so where `expected_ratio` bounds them, α is at most 1, the default without data.
    """

    has_client = True

    def check(self, model_dir):
        """Checks that CTranslate2 is installed and can compute this model."""
        _import()
        _check(model_dir)

    def write(self, model_dir, theta, step, directory):
        """Writes the model, the vocabularies and what the client knows."""
        model_dir, theta = unrolled(model_dir, theta)
        spec = _spec(_import(), model_dir, theta)
        spec.validate()
        spec.optimize(quantization=self.storage.name if self.storage.widens else None)
        spec.save(str(directory))
        for side in SIDES:
            (directory / f"{side}.model").write_bytes(model_dir.vocabulary(side).model_bytes)
        about = json.dumps(_about(model_dir), ensure_ascii=False)
        (directory / ABOUT).write_text(about, encoding="utf-8")


def _about(model_dir):
    """What the client knows; see `client.WithCTranslate2`."""
    read, written = (model_dir.vocabulary(side) for side in SIDES)
    decoding = model_dir.params.decoding
    searches = {name: decoding.filled(model_dir.fitted, name) for name in sorted(model_dir.tags)}
    return {
        "languages": list(searches),
        "source_languages": model_dir.source_languages,
        "pairs": model_dir.translated_pairs,
        "part_pieces": part_pieces(model_dir.params),
        "decomposed": model_dir.fitted.decomposed,
        "tags": {name: read.pieces([model_dir.tags[name]])[0] for name in searches},
        "no_words": written.pieces([PAD, BOS]),
        **{name: getattr(decoding, name) for name in _CARRIED_OUT},
        "length_ratio": {name: one.length_ratio for name, one in searches.items()},
        "length_penalty": {
            # The derivatives of α log(5 + length) and β log(length) are equal.
            name: (
                min(one.length_penalty, UNFITTED.penalty)
                if one.expected_ratio
                else one.length_penalty
            )
            * _USUAL_LENGTH
            / (5 + _USUAL_LENGTH)
            for name, one in searches.items()
        },
    }


def _import():
    try:
        from ctranslate2 import specs
    except ImportError as error:
        raise ValueError(
            "--format=ctranslate2 needs CTranslate2, which is not installed: "
            "pip install ctranslate2."
        ) from error
    return specs


def _check(model_dir: ModelDir) -> None:
    """Raises ValueError: CTranslate2 cannot compute this model or its search."""
    model, decoding = model_dir.params.model, model_dir.params.decoding
    known = (*_CARRIED_OUT, *_NOT_NEEDED)
    fields: dict[str, tuple[Params, str]] = {f"model.{n}": (model, n) for n in _DEFAULT_ALONE}
    fields["language_tags"] = model_dir.params, "language_tags"
    fields |= {f"decoding.{n}": (decoding, n) for n in vars(decoding) if n not in known}
    for path, (params, name) in fields.items():
        value, default = getattr(params, name), getattr(type(params), name)
        if value != default:
            raise ValueError(
                f"CTranslate2 supports {path}={text_of(default)} only, not {short_repr(value)}. "
                f"Export the model with --format=saved_model."
            )
    if model.activation not in _ACTIVATIONS:
        raise ValueError(
            f"CTranslate2 has no activation {model.activation}; it has "
            f"{', '.join(map(str, _ACTIVATIONS))}. Export it with --format=saved_model."
        )


def _spec(specs, model_dir, theta):
    """CTranslate2's specification of a dense model."""
    params, transformer = model_dir.params.model, specs.transformer_spec
    head_dim = None if params.num_heads * params.head_dim == params.model_dim else params.head_dim
    shape = {
        "num_heads": params.num_heads,
        "pre_norm": True,
        "activation": specs.common_spec.Activation[_ACTIVATIONS[params.activation]],
        "relative_attention_bias": True,
        "ffn_glu": params.activation.gated,
        "rms_norm": True,
        "head_dim": head_dim,
    }
    spec = transformer.TransformerSpec(
        transformer.TransformerEncoderSpec(params.num_encoder_layers, **shape),
        transformer.TransformerDecoderSpec(params.num_decoder_layers, **shape),
    )
    names = {side: v.pieces(range(v.size)) for side, v in model_dir.vocabularies.items()}
    source = theta.encoder.embedding.table
    target = source if params.shared_embedding else theta.decoder.embedding.table
    network = model_dir.task.transformer
    _fill_stack(spec.encoder, network.encoder, theta.encoder)
    _fill_stack(spec.decoder, network.decoder, theta.decoder)
    spec.encoder.embeddings[0].weight = source[: len(names["source"])].copy()
    spec.decoder.embeddings.weight = target[: len(names["target"])].copy()
    spec.decoder.projection.weight = spec.decoder.embeddings.weight
    spec.decoder.scale_outputs = np.float32(params.model_dim**-0.5)
    spec.register_source_vocabulary(names["source"])
    spec.register_target_vocabulary(names["target"])
    config, reserved = spec.config, names["target"]
    config.bos_token = config.decoder_start_token = reserved[BOS]
    config.eos_token, config.unk_token = reserved[EOS], reserved[UNK]
    config.add_source_eos = True
    config.layer_norm_epsilon = params.norm.epsilon
    return spec


def _fill_stack(spec, stack, theta):
    spec.scale_embeddings = False
    spec.layer_norm.gamma = theta.norm.scale
    for name, layer in zip(stack.layers, spec.layer, strict=True):
        own = theta[name]
        _fill_attention(layer.self_attention, own, "self_attention", ["query", "key", "value"])
        layer.self_attention.relative_attention_bias = theta.relative_bias.bias
        layer.self_attention.relative_attention_max_distance = np.int32(
            stack.relative_bias.max_distance
        )
        if stack.is_decoder:
            _fill_attention(layer.attention, own, "cross_attention", ["query"], ["key", "value"])
        layer.ffn.layer_norm.gamma = own.norms.feed_forward.scale
        network = own.feed_forward
        # A gated activation is applied to wg's product.
        _fill_linear(layer.ffn.linear_0, network.get("wg", network.wi))
        if "wg" in network:
            _fill_linear(layer.ffn.linear_0_noact, network.wi)
        _fill_linear(layer.ffn.linear_1, network.wo)


def _fill_attention(spec, weights, name, *products):
    spec.queries_scale = np.float32(1.0)
    spec.layer_norm.gamma = weights.norms[name].scale
    own = weights[name]
    for linear, parts in zip(spec.linear, [*products, ["output"]], strict=True):
        _fill_linear(linear, np.concatenate([own[part] for part in parts], axis=1))


def _fill_linear(spec, weight):
    spec.weight = np.array(weight.T, order="C")  # a copy: quantising works in place
