"""Dense twins of the M4 family: what the experts are worth (compare Table 1 of arXiv 2006.16668).

All that is not the feed-forward layers is m4's, data and optimizer included. A twin of equal depth
does less work a token than top-2 gating. The wide one does as much: in m4 every second layer has
two experts of H at work and every other one network of H, 1.5·H in the mean, which is the width of
each of its layers.
"""

import dataclasses

from lingvo_moe.core.registry import register
from lingvo_moe.tasks.translation import TranslationParams
from lingvo_moe.zoo import m4


@register
class M4_12L(m4.MoE128E12L):
    """0.45B weights: 12 layers, each MoE layer of m4.MoE128E12L one feed-forward layer."""

    num_experts = None


@register
class M4_36L(m4.MoE128E36L):
    """1.2B weights: 36 layers, each MoE layer of m4.MoE128E36L one feed-forward layer."""

    num_experts = None


@register
class M4_12LWide(M4_12L):
    """0.55B weights: 12 layers, H 12288: a token's work is that of m4.MoE128E12L."""

    def params(self) -> TranslationParams:
        """The frozen params."""
        params = super().params()
        model = dataclasses.replace(params.model, hidden_dim=params.model.hidden_dim * 3 // 2)
        return dataclasses.replace(params, model=model)
