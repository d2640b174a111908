"""No Language Left Behind: 200 languages, any to any (Costa-jussà et al. 2022, arXiv 2207.04672).

The models are the released checkpoints, tensor by tensor; lingvo-moe-import makes logdirs of them
(pretrained/config.py). `Small` has the paper's regularisation of experts in a model for two cores.
"""

import dataclasses
from typing import Any, ClassVar

from lingvo_moe.config.registry import register
from lingvo_moe.moe.dispatch import Einsum
from lingvo_moe.moe.experts import ExpertParams
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.zoo import m2m100, small

_VOCABULARY = 256_206  # 256000 pieces, 4 special ones and 202 language codes


@register
class Small(small.MoE):
    """small.MoE with expert output masking (section 6.2), against overfitting of experts."""

    def params(self) -> TranslationParams:
        """The frozen params."""
        return super().params().with_moe(expert=ExpertParams(mask_rate=0.2))


class _Released(m2m100.Released):
    """A released checkpoint; the attributes are fields of its config.json."""

    vocab_size = _VOCABULARY


@register
class Distilled600M(_Released):
    """0.6B weights: nllb-200-distilled-600M, 12 + 12 layers of M 1024."""


@register
class Dense1_3B(_Released):
    """1.4B weights: nllb-200-1.3B and nllb-200-distilled-1.3B, 24 + 24 layers of M 1024."""

    layers = 24
    ffn_dim = 8192


@register
class Dense3_3B(Dense1_3B):
    """3.3B weights: nllb-200-3.3B, 24 + 24 layers of M 2048."""

    d_model = 2048


@register
class MoE54B(Dense3_3B):
    """54.5B weights: nllb-moe-54b, 128 experts in every 4th layer; for pods of 128 devices.

    A batch is Meta's for fine-tuning, 32k tokens.
    """

    model_type = "nllb-moe"
    more: ClassVar[dict[str, Any]] = {
        "num_experts": 128,
        "encoder_sparse_step": 4,
        "decoder_sparse_step": 4,
        "moe_token_dropout": 0.2,
    }

    def params(self) -> TranslationParams:
        """The frozen params."""
        params = super().params().with_moe(training=Einsum(groups=128))
        return dataclasses.replace(params, input=dataclasses.replace(params.input, batch_size=256))
