"""Fine-grained experts (DeepSeekMoE, Dai et al. 2024, arXiv 2401.06066).

Each expert of the GShard layout is split into four with a quarter of its hidden units, and a token
goes to four times as many (section 3.1). Weights and FLOPs per token stay the same, but there are
more combinations of experts. Compare each model with its base class.
"""

import dataclasses

from lingvo_moe.config.registry import register
from lingvo_moe.moe.dispatch import Gather
from lingvo_moe.moe.experts import ExpertParams
from lingvo_moe.moe.gatings.balance_loss import BySequence
from lingvo_moe.moe.gatings.loss_free import LossFree
from lingvo_moe.moe.gatings.scores import Sigmoid
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.moe.shared import AlwaysOn
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.zoo import small, tiny

_PARTS = 4  # of an expert


def _cut(params: TranslationParams, **changes) -> TranslationParams:
    """The params with experts split into parts."""
    model, moe = params.model, params.model.moe
    choices = 2 * _PARTS
    assert moe
    changes = {
        "num_experts": _PARTS * moe.num_experts,
        "expert": ExpertParams(hidden_dim=model.hidden_dim // _PARTS),
        "gating": TopK(k=choices),
        "training": Gather(capacity_factor=float(choices)),
        **changes,
    }
    moe = dataclasses.replace(moe, **changes)
    return dataclasses.replace(params, model=dataclasses.replace(model, moe=moe))


@register
class Tiny(tiny.MoE):
    """tiny.MoE with 32 experts of a quarter of the size, 8 a token."""

    def params(self) -> TranslationParams:
        """The frozen params."""
        return _cut(super().params())


@register
class TinyToday(tiny.MoE):
    """finegrained.Tiny with shared experts (section 3.2) and parts of DeepSeek-V3's router.

    Two of the 32 experts are one dense network for every token, and a token chooses 6 of the other
    30. The router (arXiv 2412.19437, without its scale and its limit of nodes) has sigmoid scores,
    balance by a bias, and a small loss for each sentence.
    """

    def params(self) -> TranslationParams:
        """The frozen params."""
        return _cut(
            super().params(),
            num_experts=30,
            gating=TopK(k=6, scores=Sigmoid(), bias=LossFree(), balance=BySequence()),
            training=Gather(capacity_factor=6.0),
            shared=AlwaysOn(experts=2),
        )


@register
class Small(small.MoE):
    """small.MoE with 32 experts of a quarter of the size, 8 a token.

    lingvo-moe-train --model=finegrained.Small --data=DATA --logdir=LOGDIR

    12.2M weights, 4,100 steps, 86 minutes on one core with AVX512_BF16 in bfloat16. Trained on the
    38 language pairs of docs/results.md it has a dev loss of 1.80 nats per token. The mean BLEU of
    the 21 pairs with at least 30 test lines is 29.5 (one seed).
    """

    def params(self) -> TranslationParams:
        """The frozen params."""
        return _cut(super().params())
