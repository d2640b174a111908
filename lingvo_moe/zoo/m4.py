"""GShard's models: M4, 100 languages into English (arXiv 2006.16668, section 4, Tables 1, 3).

Common params: M 1024, H 8192, 16 heads, dropout 0.1, Adafactor with learning rate 1.0 and
inverse-square-root decay after 10k steps, label smoothing 0.1, SentencePiece vocabularies of 64000
for the source and 32000 for the target. Weights and activations are float32, except in the 1T
model. For pods, equal layers are computed in one loop, so that 60 layers compile as fast as 12.
Router weights are stored in pieces, because they grow with the number of experts.
"""

from typing import Literal

from lingvo_moe.config.registry import register
from lingvo_moe.data.pipeline import InputParams
from lingvo_moe.layers.transformer_layer import TransformerParams
from lingvo_moe.moe.dispatch import Einsum
from lingvo_moe.moe.layer import MoEParams
from lingvo_moe.sbp.params import ShardingParams
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.training.train_params import TrainParams


class _M4:
    """The common params of the family; a model overrides some of them."""

    num_layers: int
    num_experts: int | None = None
    head_dim = 128
    batch_tokens = 2**20
    activation_dtype: Literal["float32", "bfloat16"] = "float32"

    def params(self) -> TranslationParams:
        """The frozen params."""
        return TranslationParams(
            model=TransformerParams(
                num_encoder_layers=self.num_layers // 2,
                num_decoder_layers=self.num_layers // 2,
                model_dim=1024,
                hidden_dim=8192,
                num_heads=16,
                head_dim=self.head_dim,
                moe=self._moe(),
                scan=True,
            ),
            source_vocab_size=64_000,
            target_vocab_size=32_000,
            input=InputParams(
                batch_size=self.batch_tokens // 128, source_length=128, target_length=128
            ),
            train=TrainParams(max_steps=10**12 // self.batch_tokens),
            sharding=ShardingParams(state_rules=(("e", ("expert",)),)),
            activation_dtype=self.activation_dtype,
        )

    def _moe(self):
        if self.num_experts is None:
            return None
        # As many groups as experts: a core has one group and one expert.
        training = Einsum(groups=self.num_experts)
        return MoEParams(num_experts=self.num_experts, training=training)


@register
class MoE2048E36L(_M4):
    """600B weights: the paper's best, 2048 experts in each of 18 MoE layers, on 2048 cores."""

    num_layers = 36
    num_experts = 2048
    batch_tokens = 2**22


@register
class MoE2048E12L(_M4):
    """200B weights: 2048 experts, 12 layers, on 2048 cores."""

    num_layers = 12
    num_experts = 2048
    batch_tokens = 2**22


@register
class MoE512E36L(_M4):
    """150B weights: 512 experts, 36 layers, on 512 cores."""

    num_layers = 36
    num_experts = 512


@register
class MoE512E12L(_M4):
    """50B weights: 512 experts, 12 layers, on 512 cores."""

    num_layers = 12
    num_experts = 512


@register
class MoE128E36L(_M4):
    """37B weights: 128 experts, 36 layers, on 128 cores."""

    num_layers = 36
    num_experts: int | None = 128


@register
class MoE128E12L(_M4):
    """12.5B weights: 128 experts, 12 layers, on 128 cores."""

    num_layers = 12
    num_experts: int | None = 128


@register
class MoE2048E60L(_M4):
    """1T weights: 2048 experts, 60 layers, bfloat16 activations, on 2048 cores."""

    num_layers = 60
    num_experts = 2048
    batch_tokens = 2**22
    activation_dtype = "bfloat16"


@register
class T96L(_M4):
    """2.3B weights: the dense 96-layer Transformer that the paper compares with, on 2048 cores."""

    num_layers = 96
    head_dim = 64
    batch_tokens = 2**22


@register
class Bilingual(_M4):
    """0.4B weights: the bilingual baseline, one for each language pair."""

    num_layers = 12
    head_dim = 64
    batch_tokens = 2**18
