r"""An attention of your own, and a model that uses it: one file, nothing in the package is edited.

lingvo-moe-train --import=examples/own_attention.py --model=own_attention.Tiny \
    --data=data --logdir=mine
lingvo-moe-translate --logdir=mine --to=en 'a sentence'     # the logdir stores the file's name
"""

import dataclasses

import tensorflow as tf

import lingvo_moe as lm
from lingvo_moe.layers.attention import Attention, AttentionParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capped(Attention):
    """Attention whose logits stay within ±cap (Gemma Team 2024, arXiv 2408.00118, section 2)."""

    cap: float = 50.0

    def probabilities(self, logits, bias):
        logits = self.cap * tf.tanh(tf.cast(logits, tf.float32) / self.cap)
        return super().probabilities(logits, bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftCap(AttentionParams):
    """The policy: what `--set` can name, such as model.attention=own_attention.SoftCap(cap=20)."""

    cap: float = 50.0

    def layer(self, **sizes):
        return Capped(cap=self.cap, **sizes)


@lm.register
class Tiny:
    """tiny.MoE with capped logits of attention."""

    def params(self):
        return lm.evolve(lm.params("tiny.MoE"), "model.attention", SoftCap(cap=20.0))
