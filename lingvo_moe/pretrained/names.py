"""Which tensors of a Hugging Face checkpoint a weight is made of, and how.

A linear layer's weight is [outputs, inputs] there and [inputs, outputs] here. Row 0 of the
embedding is `<s>` there and padding here, row 1 the other way round.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lingvo_moe.moe.layer import MoE
from lingvo_moe.nn.layer import WeightSpec, bias_of
from lingvo_moe.tasks.translation import TranslationTask

EMBEDDING = "shared.weight"
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_PRODUCTS = {"wi": "fc1", "wo": "fc2"}


class Origin(NamedTuple):
    """What a weight is made of."""

    names: tuple[str, ...]  # of the tensors, without `model.`; one, or for experts one each
    spec: WeightSpec  # of the weight

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each tensor."""
        one = self.spec.shape[1:] if self.of_experts else self.spec.shape
        return one if self._is_table else one[::-1]

    @property
    def of_experts(self) -> bool:
        """Whether the weight has a first dimension for experts."""
        return self.spec.dims[0] == "E"

    @property
    def _is_table(self):
        return self.spec.dims == "VM"

    def turn(self, tensor: np.ndarray) -> Iterator[np.ndarray]:
        """From a tensor to the weight, or of an expert's part of it, or back, in parts, to be
        joined along the first dimension."""
        yield from (tensor[1:2], tensor[:1], tensor[2:]) if self._is_table else (tensor.T,)


def origins(task: TranslationTask, moe_names: bool) -> dict[str, Origin]:
    """The path of each weight, such as "encoder/layer_00/self_attention/query" -> its Origin;
    moe_names says whether names are those of NLLB-MoE, see `config.is_moe`."""
    specs = dict(task.weights().flatten())
    names = {"encoder/embedding/table": (EMBEDDING,)}
    for side in ("encoder", "decoder"):
        names |= _norm(f"{side}/norm", f"{side}.layer_norm")
        stack = getattr(task.transformer, side)
        for number, (layer_name, layer) in enumerate(stack.layers.items()):
            ours, theirs = f"{side}/{layer_name}", f"{side}.layers.{number}"
            names |= _layer(ours, theirs, layer, moe_names)
    return {path: Origin(names[path], spec) for path, spec in specs.items()}


def _layer(ours, theirs, layer, moe_names):
    """The names of a layer's tensors by path."""
    cross = "cross_attention" if moe_names else "encoder_attn"
    feed_forward, norm = ("ffn.", "ff") if moe_names else ("", "final")
    branches = {"self_attention": "self_attn", "cross_attention": cross}
    names = _norm(f"{ours}/norms/feed_forward", f"{theirs}.{norm}_layer_norm")
    for branch, name in branches.items():
        names |= _norm(f"{ours}/norms/{branch}", f"{theirs}.{name}_layer_norm")
        names |= _linear(f"{ours}/{branch}", [f"{theirs}.{name}."], _PROJECTIONS)
    layer = layer.feed_forward
    ours, theirs = f"{ours}/feed_forward", f"{theirs}.{feed_forward}"
    if not isinstance(layer, MoE):
        return names | _linear(ours, [theirs], _PRODUCTS)
    experts = [f"{theirs}experts.expert_{e}." for e in range(layer.params.num_experts)]
    names[f"{ours}/gate"] = (f"{theirs}router.classifier.weight",)
    return names | _linear(f"{ours}/experts", experts, _PRODUCTS)


def _norm(ours, theirs):
    return {f"{ours}/scale": (f"{theirs}.weight",), f"{ours}/bias": (f"{theirs}.bias",)}


def _linear(ours, prefixes, products):
    names = {}
    for weight, name in products.items():
        names[f"{ours}/{weight}"] = tuple(f"{prefix}{name}.weight" for prefix in prefixes)
        names[f"{ours}/{bias_of(weight)}"] = tuple(f"{prefix}{name}.bias" for prefix in prefixes)
    return names
