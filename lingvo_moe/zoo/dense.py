"""Dense twins of the M4 family, to measure the gain from experts (Table 1 of arXiv 2006.16668).

Everything except the feed-forward layers is that of m4, also data and optimizer. A twin of equal
depth has fewer FLOPs per token than top-2 gating. The wide one has the same: in m4 a token uses two
experts of H in every second layer and one network of H in the others, 1.5·H on average, which is
the width of all its layers.
"""

import dataclasses

from lingvo_moe.config.registry import register
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.zoo import m4


@register
class M4_12L(m4.MoE128E12L):
    """0.45B weights: 12 layers, each MoE layer of m4.MoE128E12L one feed-forward layer."""

    num_experts = None


@register
class M4_12LWide(M4_12L):
    """0.55B weights: 12 layers, H 12288: as many FLOPs per token as m4.MoE128E12L."""

    def params(self) -> TranslationParams:
        """The frozen params."""
        params = super().params()
        model = dataclasses.replace(params.model, hidden_dim=params.model.hidden_dim * 3 // 2)
        return dataclasses.replace(params, model=model)
