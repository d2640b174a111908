"""A model for one GPU, or for eight: 6 + 6 layers of width 512, 16 experts.

lingvo-moe-train --model=base.MoE --data=DATA --logdir=LOGDIR
lingvo-moe-train --model=base.MoE --data=DATA --logdir=LOGDIR --runtime=spmd --mesh=expert:8
"""

import dataclasses

from lingvo_moe.config.registry import register
from lingvo_moe.moe.dispatch import Gather
from lingvo_moe.moe.layer import MoEParams
from lingvo_moe.tasks.params import RecipeParams, TranslationParams
from lingvo_moe.zoo import small


@register
class MoE(small.MoE):
    """16 experts in every second layer, about 240 million weights, for millions of lines.

    The eight groups of a batch are split over the devices of a mesh, so it trains alike on one
    device and on eight.
    """

    num_layers = 6, 6
    model_dim = 512
    moe = MoEParams(num_experts=16, training=Gather(groups=8))
    recipe = RecipeParams(most_tokens=1_000_000_000)

    def params(self) -> TranslationParams:
        """The frozen params."""
        params = super().params()
        model = dataclasses.replace(params.model, num_heads=8, head_dim=64)
        rows = dataclasses.replace(params.input, batch_size=512)
        return dataclasses.replace(params, model=model, input=rows, activation_dtype="bfloat16")
