"""No Language Left Behind: 200 languages, any to any (Costa-jussà et al. 2022, arXiv 2207.04672).

Common params of the full-size models: 24 + 24 layers, M 2048, H 8192, 16 heads, dropout 0.3, one
joint vocabulary and one embedding for both sides, label smoothing 0.1, pairs sampled in proportion
to their data, a million tokens per batch, Adam with a learning rate that rises to 0.002 over 8000
steps and then falls with the inverse square root of the step, 300k steps. The MoE models have 128
experts in every 4th layer, top-2 gating that always takes the second expert, capacity factor 2 and
a balance loss with weight 0.01.

The released checkpoints have other layers: LayerNorm, biases, sinusoidal positions. Their shapes,
tensor by tensor, are those of `Distilled600M`, `Dense1_3B`, `Dense3_3B` and `MoE54B`;
lingvo-moe-import makes logdirs of them.
"""

import dataclasses
from typing import Any, ClassVar

from lingvo_moe.config.registry import register
from lingvo_moe.data.pipeline import InputParams
from lingvo_moe.layers.transformer_layer import TransformerParams
from lingvo_moe.moe.dispatch import Einsum
from lingvo_moe.moe.experts import ExpertParams
from lingvo_moe.moe.gatings.top_2 import Top2
from lingvo_moe.moe.layer import MoEParams
from lingvo_moe.moe.shared import Gated
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.training.adamw import AdamW
from lingvo_moe.training.schedules import InverseSquareRoot
from lingvo_moe.training.train_params import TrainParams
from lingvo_moe.zoo import m2m100, small

_VOCABULARY = 256_206  # 256000 pieces, 4 special ones and 202 language codes
_BATCH_TOKENS = 2**20
_WARMUP_STEPS = 8000
_PEAK_RATE = 0.002

# Section 6.2: regularisation against overfitting of experts on small languages.
_EXPERT_OUTPUT_MASKING: dict[str, Any] = {"expert": ExpertParams(mask_rate=0.2)}
_CONDITIONAL_ROUTING: dict[str, Any] = {
    "shared": Gated(dropout_rate=0.2, loss_weight=0.1, budget=0.8),
}


class _Nllb:
    """The common params of the full-size models; a model overrides some of them."""

    moe: MoEParams | None = None

    def params(self) -> TranslationParams:
        """The frozen params."""
        return TranslationParams(
            model=TransformerParams(
                num_encoder_layers=24,
                num_decoder_layers=24,
                model_dim=2048,
                hidden_dim=8192,
                num_heads=16,
                head_dim=128,
                moe=self.moe,
                dropout_rate=0.3,
                shared_embedding=True,
            ),
            source_vocab_size=_VOCABULARY,
            target_vocab_size=_VOCABULARY,
            input=InputParams(
                batch_size=_BATCH_TOKENS // 128,
                source_length=128,
                target_length=128,
                temperature=1.0,
            ),
            optimizer=AdamW(
                schedule=InverseSquareRoot(
                    learning_rate=_PEAK_RATE * _WARMUP_STEPS**0.5,
                    warmup_steps=_WARMUP_STEPS,
                    linear_warmup=True,
                ),
                beta2=0.98,
                epsilon=1e-6,
            ),
            train=TrainParams(max_steps=300_000),
        )


_MOE = MoEParams(
    num_experts=128,
    every_n=4,
    gating=Top2(second_expert="always"),
    training=Einsum(groups=128),
)


@register
class MoE128(_Nllb):
    """54.5B weights: NLLB-200, 128 experts in every 4th layer, expert output masking 0.2."""

    moe = dataclasses.replace(_MOE, **_EXPERT_OUTPUT_MASKING)


@register
class MoE128CMR(_Nllb):
    """54.9B weights: NLLB-200 with conditional routing (a shared expert) instead of masking."""

    moe = dataclasses.replace(_MOE, **_CONDITIONAL_ROUTING)


@register
class Dense(_Nllb):
    """3.3B weights: the dense NLLB-200, twin of nllb.MoE128."""


@register
class Small(small.MoE):
    """small.MoE with expert output masking."""

    def params(self) -> TranslationParams:
        """The frozen params."""
        return super().params().with_moe(**_EXPERT_OUTPUT_MASKING)


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
