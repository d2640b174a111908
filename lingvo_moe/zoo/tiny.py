"""Models of the demo: trained in minutes on two cores, on the synthetic corpus."""

from lingvo_moe.config.params import evolve
from lingvo_moe.config.registry import register
from lingvo_moe.data.pipeline import InputParams
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.layers import position
from lingvo_moe.layers.attention import MultiHead
from lingvo_moe.layers.transformer_layer import TransformerParams
from lingvo_moe.moe.layer import MoEParams
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.training.adafactor import Adafactor
from lingvo_moe.training.schedules import InverseSquareRoot
from lingvo_moe.training.train_params import TrainParams


class _Tiny:
    """2 + 2 layers of width 128; a model overrides some of the params."""

    num_experts: int | None = None
    max_steps = 850
    eval_every = 425
    patience: int | None = None

    def params(self) -> TranslationParams:
        """The frozen params."""
        return TranslationParams(
            model=TransformerParams(
                num_encoder_layers=2,
                num_decoder_layers=2,
                model_dim=128,
                hidden_dim=512,
                num_heads=4,
                head_dim=32,
                moe=MoEParams(num_experts=self.num_experts) if self.num_experts else None,
            ),
            source_vocab_size=1536,
            target_vocab_size=768,
            input=InputParams(batch_size=32, source_length=48, target_length=32),
            optimizer=Adafactor(schedule=InverseSquareRoot(learning_rate=1.0, warmup_steps=1000)),
            train=TrainParams(
                max_steps=self.max_steps,
                log_every=25,
                eval_every=self.eval_every,
                checkpoint_every=self.eval_every,
                patience=self.patience,
            ),
            decoding=BeamSearchParams(length_penalty=0.6),  # a fit would take longer than training
        )


@register
class MoE(_Tiny):
    """8 experts in every second layer, all pairs in one model."""

    num_experts = 8


@register
class Dense(_Tiny):
    """The dense twin of tiny.MoE: each MoE layer is one feed-forward layer."""


@register
class Grouped(MoE):
    """tiny.MoE with grouped-query attention: two heads of queries share keys and values."""

    def params(self) -> TranslationParams:
        """The frozen params."""
        return evolve(super().params(), "model.attention", MultiHead(key_heads=2))


@register
class Rotary(MoE):
    """tiny.MoE with rotary positions instead of a learned bias."""

    def params(self) -> TranslationParams:
        """The frozen params."""
        return evolve(super().params(), "model.position", position.Rotary())


@register
class Bilingual(_Tiny):
    """The baseline: dense, one language pair, stopped when its dev loss stops falling."""

    max_steps = 260
    eval_every = 65
    patience = 2
