"""Dense twins of the M4 family, to measure the gain from experts (Table 1 of arXiv 2006.16668).

Everything except the feed-forward layers is that of m4, also data and optimizer. A twin of equal
depth has fewer FLOPs per token than top-2 gating; `model.hidden_dim=12288` gives as many.
"""

from lingvo_moe.config.registry import register
from lingvo_moe.zoo import m4


@register
class M4_12L(m4.MoE128E12L):
    """0.45B weights: 12 layers, each MoE layer of m4.MoE128E12L one feed-forward layer."""

    num_experts = None
