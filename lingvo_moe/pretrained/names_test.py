"""The names and shapes of tensors of the released checkpoints, written out by hand."""

import math

import pytest

from lingvo_moe.config.registry import get_params
from lingvo_moe.pretrained.names import origins
from lingvo_moe.tasks.translation import TranslationTask

# name -> (vocabulary, M, layers of a side, H, experts, number of tensors, number of weights).
RELEASED = {
    "nllb.Distilled600M": (256_206, 1024, 12, 4096, 0, 509, 615_073_792),
    "nllb.Dense1_3B": (256_206, 1024, 24, 8192, 0, 1013, 1_370_638_336),
    "nllb.Dense3_3B": (256_206, 2048, 24, 8192, 0, 1013, 3_344_863_232),
    "nllb.MoE54B": (256_206, 2048, 24, 8192, 128, 7121, 54_500_569_088),
    "m2m100.M418": (128_112, 1024, 12, 4096, 0, 509, 483_905_536),
    "m2m100.M1_2": (128_112, 1024, 24, 8192, 0, 1013, 1_239_470_080),
}


def linear(name, outputs, inputs):
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name, size):
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def expected(vocabulary, m, layers, h, experts):
    """Name -> shape, as in the files without `model.`."""
    cross, last = ("cross_attention", "ff") if experts else ("encoder_attn", "final")
    shapes = {"shared.weight": (vocabulary, m)}
    for side, attentions in {"encoder": ["self_attn"], "decoder": ["self_attn", cross]}.items():
        shapes |= norm(f"{side}.layer_norm", m)
        for i in range(layers):
            layer = f"{side}.layers.{i}"
            shapes |= norm(f"{layer}.{last}_layer_norm", m)
            for attention in attentions:
                shapes |= norm(f"{layer}.{attention}_layer_norm", m)
                for projection in "qkv":
                    shapes |= linear(f"{layer}.{attention}.{projection}_proj", m, m)
                shapes |= linear(f"{layer}.{attention}.out_proj", m, m)
            networks = [f"{layer}.ffn." if experts else f"{layer}."]
            if experts and i in (3, 7, 11, 15, 19, 23):
                shapes[f"{layer}.ffn.router.classifier.weight"] = (experts, m)
                networks = [f"{layer}.ffn.experts.expert_{e}." for e in range(experts)]
            for network in networks:
                shapes |= linear(f"{network}fc1", h, m) | linear(f"{network}fc2", m, h)
    return shapes


@pytest.mark.parametrize("name", RELEASED)
def test_registered_models_have_the_tensors_of_the_released_ones(name):
    *sizes, tensors, weights = RELEASED[name]
    found = origins(TranslationTask(get_params(name)), moe_names=name == "nllb.MoE54B")
    shapes = {tensor: origin.shape for origin in found.values() for tensor in origin.names}
    assert shapes == expected(*sizes)
    assert len(shapes) == tensors
    assert sum(map(math.prod, shapes.values())) == weights
