"""Pruning of experts with little importance for some languages.  Y MoE layers, P pairs, E experts.

Koishekenov, Berard and Nikoulina 2023 (arXiv 2212.09811): the model is not trained again; the
router chooses among the remaining experts.
"""

import abc
import dataclasses
from collections.abc import Sequence

import numpy as np

from lingvo_moe.core.fields import Params, PositiveInt, Share
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.core.params import evolve
from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.gatings.hashed import Hash
from lingvo_moe.gatings.top_k import TopK
from lingvo_moe.layers.holding import EachOnce
from lingvo_moe.tasks.model_dir import ModelDir

_EQUAL = 1e-9  # smaller than any difference of importance that is not 0


def importance(record: RoutingRecord, pairs: Sequence[str]) -> list[np.ndarray]:
    """The importance of each expert for some language pairs with equal weights.

    top1(e) · exp(conf1(e)), the mean over pairs: top1 is the share of a pair's tokens whose first
    choice is e, and conf1 the mean gate of e over those tokens. Experts that would be equal, such
    as those that are never a first choice, are ordered by their share of all choices.

    Args:
        record: of routing on dev.
        pairs: names of pairs in it.

    Returns:
        For each MoE layer float [E].

    Raises:
        ValueError: the record is of an earlier version, or has no tokens of a pair.
    """
    if record.pair_first is None or record.pair_confidence is None:
        raise ValueError(
            "routing.npz is from an earlier version, which did not count first choices. Train the "
            "model further: every evaluation on dev writes it again."
        )
    places = [record.pairs.index(pair) for pair in pairs]
    first = record.pair_first[:, places]  # [Y, P, E]
    tokens = first.sum(axis=2, keepdims=True)
    if silent := [p for p, count in zip(pairs, tokens.min(axis=(0, 2)), strict=True) if not count]:
        raise ValueError(f"routing.npz has no dev tokens of {', '.join(silent)}; leave these out.")
    confidence = record.pair_confidence[:, places] / np.maximum(first, 1)
    shares = record.pair_load[:, places] / tokens
    scores = (first / tokens * np.exp(confidence) + _EQUAL * shares).mean(axis=1)
    return [row[:count] for row, count in zip(scores, record.num_experts, strict=True)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice(Params, abc.ABC):
    """A policy that chooses the experts to keep."""

    @abc.abstractmethod
    def keep(self, scores: list[np.ndarray], share: float) -> list[np.ndarray]:
        """The experts to keep in each layer, in ascending order.

        Args:
            scores: the importance of experts, for each layer [E].
            share: the share of experts to remove.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerLayer(Choice):
    """Keeps the best experts of each layer, the same share in every layer and at least one."""

    def keep(self, scores, share):
        return [_best(of, max(1, round((1 - share) * len(of)))) for of in scores]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Threshold(Choice):
    """One threshold for all layers: layers with evenly used experts keep more of them.

    A layer keeps its best experts up to a share t of its total importance; t is the smallest share
    that keeps enough experts.

    Attributes:
        least: smallest number of experts of a layer.
    """

    least: PositiveInt = 4

    def keep(self, scores, share):
        wanted = round((1 - share) * sum(map(len, scores)))
        # The share of the layer's importance before each expert; experts with less than t are kept.
        ahead = []
        for of in scores:
            falling = np.sort(of)[::-1] / max(of.sum(), 1e-30)
            ahead.append(np.cumsum(falling) - falling)
            ahead[-1][: self.least] = -1.0
        last = np.sort(np.concatenate(ahead))[max(wanted, 1) - 1]
        return [
            _best(of, np.count_nonzero(before <= last))
            for of, before in zip(scores, ahead, strict=True)
        ]


CHOICES = {"layer": PerLayer(), "global": Threshold()}


def _best(scores, count):
    return np.sort(np.argsort(-scores, kind="stable")[:count])  # of equals the first


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pruning(Params):
    """Removes experts.

    Attributes:
        share: the share of experts to remove.
        languages: languages such as "de" (all pairs with the language), and pairs such as "de-en";
            () for all pairs.
        choice: chooses the experts to keep.
    """

    share: Share
    languages: tuple[str, ...] = ()
    choice: Choice = PerLayer()

    def pairs(self, model_dir: ModelDir) -> tuple[str, ...]:
        """The pairs of the pruned model.

        Raises:
            ValueError: a language or pair that the model was not trained on.
        """
        trained = model_dir.params.input.pairs or model_dir.pairs
        if not trained:  # an imported model
            trained = RoutingRecord.load(model_dir.routing_path).pairs
        known = {name for pair in trained for name in (pair, *pair.split("-"))}
        if unknown := sorted(set(self.languages) - known):
            raise ValueError(
                f"--languages={','.join(unknown)}: the model was trained on {', '.join(trained)}. "
                f"Give languages or pairs of these."
            )
        wanted = set(self.languages) or known
        return tuple(pair for pair in trained if wanted & {pair, *pair.split("-")})

    def check(self, model_dir: ModelDir) -> None:
        """Checks that a model can be pruned.

        Raises:
            ValueError: it has no experts, a dispatcher or gating that cannot be pruned, or no
                record of routing.
        """
        moe = model_dir.params.model.moe
        if moe is None:
            raise ValueError(f"{model_dir.path} is of a model without experts; drop --prune.")
        if moe.dispatcher.holding != EachOnce():
            raise ValueError(
                f"moe.dispatcher={moe.dispatcher} has its own layout of experts, which --prune "
                f"does not support; drop --prune."
            )
        if isinstance(moe.gating, Hash):
            raise ValueError(
                "moe.gating=Hash chooses experts by a hash of the token, so none can "
                "be removed. Drop --prune."
            )
        if isinstance(moe.gating, TopK) and moe.gating.limit:
            raise ValueError(
                f"moe.gating.limit={moe.gating.limit} needs equal blocks of experts, which "
                f"pruning would break. Drop --prune."
            )
        importance(RoutingRecord.load(model_dir.routing_path), self.pairs(model_dir))

    def apply(self, model_dir: ModelDir, theta: NestedMap) -> tuple[ModelDir, NestedMap]:
        """The pruned model, with the target languages of the pairs and the remaining experts.

        If layers keep different numbers, the params have the largest of each side.

        Args:
            model_dir: the trained model.
            theta: its weights, arrays.

        Raises:
            ValueError: as `check` and `pairs`.
        """
        self.check(model_dir)
        pairs = self.pairs(model_dir)
        record = RoutingRecord.load(model_dir.routing_path)
        model_dir, theta = unrolled(model_dir, theta)
        layers = model_dir.task.moe_layers
        kept = self.choice.keep(importance(record, pairs), self.share)
        weights = dict(theta.flatten())
        for layer, experts in zip(layers, kept, strict=True):
            place = f"{layer}/feed_forward/"
            for name in [name for name in weights if name.startswith(place)]:
                part = name.removeprefix(place).split("/")[0]
                if part in ("gate", "gating"):
                    weights[name] = weights[name][..., experts]
                elif part == "experts":
                    weights[name] = weights[name][experts]
        most: dict[str, int | None] = {}
        for layer, experts in zip(layers, kept, strict=True):
            side = layer.partition("/")[0]
            most[side] = max(most.get(side) or 0, len(experts))
        params = model_dir.params
        assert params.model.moe
        most.setdefault("encoder", params.model.moe.num_experts)
        params = evolve(params, "model.moe.num_experts", most["encoder"])
        params = evolve(params, "model.moe.decoder_num_experts", most.get("decoder"))
        sources, targets = map(set, zip(*(pair.split("-") for pair in pairs), strict=True))
        known = targets | (sources if model_dir.task.needs_source_language else set())
        tags = {language: tag for language, tag in model_dir.tags.items() if language in known}
        params = evolve(params, "input.pairs", pairs)
        pruned = dataclasses.replace(model_dir, params=params, tags=tags)
        return pruned, NestedMap.unflatten(weights)


def unrolled(model_dir: ModelDir, theta: NestedMap) -> tuple[ModelDir, NestedMap]:
    """The same model with separate weights for each layer, not stacked for a scan."""
    if not model_dir.params.model.scan:
        return model_dir, theta
    transformer, sides = model_dir.task.transformer, NestedMap()
    for side in ("encoder", "decoder"):
        rest = {name: part for name, part in theta[side].items() if name != "block"}
        layers = getattr(transformer, side).layer_thetas(theta[side])
        sides[side] = NestedMap(rest | layers)
    params = evolve(model_dir.params, "model.scan", False)
    return dataclasses.replace(model_dir, params=params), sides
