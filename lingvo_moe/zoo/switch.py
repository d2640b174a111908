"""The recipe of Switch Transformer (Fedus et al. 2021, arXiv 2101.03961) for small.MoE.

Top-1 gating, capacity factor 1.25, balance loss with weight 0.01 and router inputs with 1 % jitter
(sections 2.2 and 2.4, appendix C). Evaluation drops no token, as for all registered models.
"""

from lingvo_moe.config.params import evolve
from lingvo_moe.config.registry import register
from lingvo_moe.moe.gatings.switch import Switch
from lingvo_moe.moe.router import ByToken
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.zoo import small


@register
class Small(small.MoE):
    """small.MoE with one expert per token."""

    def params(self) -> TranslationParams:
        """The frozen params."""
        params = super().params().with_moe(gating=Switch(), router=ByToken(jitter=0.01))
        return evolve(params, "model.moe.training.capacity_factor", 1.25)
