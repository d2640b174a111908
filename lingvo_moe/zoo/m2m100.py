"""M2M-100: 100 languages, any to any (Fan et al. 2020, arXiv 2010.11125), as it was released.

The shapes are those of the checkpoints in the format of Hugging Face, `m2m100_418M` and
`m2m100_1.2B`, tensor by tensor; lingvo-moe-import makes logdirs of them. Optimizer and schedule are
for fine-tuning (see pretrained/config.py).
"""

from typing import Any, ClassVar

from lingvo_moe.config.registry import register
from lingvo_moe.pretrained.config import to_params
from lingvo_moe.tasks.params import TranslationParams


class Released:
    """A released model; the attributes are fields of its config.json."""

    model_type = "m2m_100"
    vocab_size = 128_112
    d_model = 1024
    layers = 12
    attention_heads = 16
    ffn_dim = 4096
    more: ClassVar[dict[str, Any]] = {}

    def params(self) -> TranslationParams:
        """The frozen params."""
        sizes = ("layers", "attention_heads", "ffn_dim")
        sides = {
            f"{side}_{size}": getattr(self, size)
            for side in ("encoder", "decoder")
            for size in sizes
        }
        own = {name: getattr(self, name) for name in ("model_type", "vocab_size", "d_model")}
        return to_params({**own, **sides, **self.more})


@register
class M418(Released):
    """0.48B weights: m2m100_418M, 12 + 12 layers."""


@register
class M1_2(Released):
    """1.2B weights: m2m100_1.2B, 24 + 24 layers."""

    layers = 24
    ffn_dim = 8192
