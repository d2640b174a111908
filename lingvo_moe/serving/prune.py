"""Pruning of experts with little importance for some languages.  Y MoE layers, P pairs, E experts.

Koishekenov, Berard and Nikoulina 2023 (arXiv 2212.09811): the model is not trained again; the
router chooses among the remaining experts.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from lingvo_moe.core.fields import Params, PositiveFloat, PositiveInt, Rate
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.core.params import evolve
from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.gatings.hashed import Hash
from lingvo_moe.gatings.top_k import TopK
from lingvo_moe.layers.holding import EachOnce
from lingvo_moe.layers.router import ByTask
from lingvo_moe.tasks.model_dir import ModelDir

_SIDES = ("encoder", "decoder")  # of source and target language
_DIGITS = 9  # to which shares are rounded: their sums round differently in each layer
_EQUAL = 1e-9  # smaller than any difference of importance that is not 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistics(Params, abc.ABC):
    """A policy that selects the pairs whose routing decides on the experts of a side."""

    @abc.abstractmethod
    def groups(
        self, side: str, pairs: Sequence[str], counted: Sequence[str]
    ) -> list[Sequence[str]]:
        """Groups of pairs; all groups have equal weights, and so have the pairs of a group.

        Args:
            side: "encoder" or "decoder".
            pairs: of the pruned model.
            counted: those with dev tokens, of all pairs of the whole model.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByPair(Statistics):
    """The pairs of the pruned model, for both sides."""

    def groups(self, side, pairs, counted):
        return [[pair] if pair in counted else [] for pair in pairs]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByLanguage(Statistics):
    """The encoder's experts by source language, the decoder's by target language.

    The statistics of a language are those of all its pairs in the whole model.
    """

    def groups(self, side, pairs, counted):
        place = _SIDES.index(side)
        languages = dict.fromkeys(pair.split("-")[place] for pair in pairs)
        return [[p for p in counted if p.split("-")[place] == language] for language in languages]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllPairs(Statistics):
    """All pairs of the whole model: the same experts for each language."""

    def groups(self, side, pairs, counted):
        return [counted]


STATISTICS = {"pair": ByPair(), "language": ByLanguage(), "all": AllPairs()}


def importance(
    record: RoutingRecord, pairs: Sequence[str], statistics: Statistics
) -> dict[str, np.ndarray]:
    """The importance of each expert for some language pairs.

    top1(e) · exp(conf1(e)), the mean over groups and over the pairs of a group: top1 is the share
    of a pair's tokens whose first choice is e, and conf1 the mean gate of e over those tokens.
    Experts that would be equal, such as those that are never a first choice, are ordered by their
    share of all choices.

    Args:
        record: of routing on dev.
        pairs: of the pruned model.
        statistics: groups of pairs.

    Returns:
        Layer -> float [E].

    Raises:
        ValueError: the record has no tokens of a pair.
    """
    first = record.pair_first  # [Y, P, E]
    tokens = first.sum(axis=2, keepdims=True)
    counted = [p for p, count in zip(record.pairs, tokens.min(axis=(0, 2)), strict=True) if count]
    confidence = record.pair_confidence / np.maximum(first, 1)
    scores = first * np.exp(confidence) + _EQUAL * record.pair_load
    scores = scores / np.maximum(tokens, 1)
    means = {}
    for layer, of, count in zip(record.layers, scores, record.num_experts, strict=True):
        groups = statistics.groups(_side(layer), pairs, counted)
        if not all(groups):
            silent = ", ".join(pair for pair in pairs if pair not in counted)
            raise ValueError(f"routing.npz has no dev tokens of {silent}; leave these out.")
        rows = [[record.pairs.index(pair) for pair in group] for group in groups]
        means[layer] = np.mean([of[row].mean(axis=0) for row in rows], axis=0)[:count]
    return means


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice(Params, abc.ABC):
    """A policy that chooses the experts to keep.

    Attributes:
        ratio: experts that an encoder layer keeps for each of a decoder layer, as far as there are
            as many; None to treat layers of both sides alike.
    """

    ratio: PositiveFloat | None = None

    def keep(self, scores: Mapping[str, np.ndarray], share: float) -> dict[str, np.ndarray]:
        """The experts to keep in each layer, in ascending order.

        Args:
            scores: layer -> the importance of its experts [E].
            share: the share of experts to remove.
        """
        if self.ratio is None:
            return self._keep(scores, 1 - share)
        sides = [{n: of for n, of in scores.items() if _side(n) == side} for side in _SIDES]
        encoder, decoder = (sum(map(len, part.values())) for part in sides)
        kept = (1 - share) * (encoder + decoder)
        even = kept / (self.ratio * encoder + decoder)
        # A decoder that would keep more than it has leaves the rest to the encoder.
        most = max(self.ratio * even, (kept - decoder) / max(encoder, 1))
        parts = min(1.0, most), (kept - min(1.0, most) * encoder) / max(decoder, 1)
        both = [self._keep(*part) for part in zip(sides, parts, strict=True) if part[0]]
        return {name: experts for side in both for name, experts in side.items()}

    @abc.abstractmethod
    def _keep(self, scores: Mapping[str, np.ndarray], share: float) -> dict[str, np.ndarray]:
        """As `keep`, where share is that of experts to keep."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerLayer(Choice):
    """Keeps the best experts of each layer, the same share in every layer and at least one."""

    def _keep(self, scores, share):
        return {name: _best(of, max(1, round(share * len(of)))) for name, of in scores.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Threshold(Choice):
    """One threshold for all layers: layers with evenly used experts keep more of them.

    A layer keeps its best experts up to a share t of its total importance; t is the smallest share
    that keeps enough experts. Of experts for which t is equal, such as those that are never used,
    those of the better rank in their layer are kept. With a ratio each side has its own t.

    Attributes:
        least: smallest number of experts of a layer.
    """

    least: PositiveInt = 4

    def _keep(self, scores, share):
        wanted = round(share * sum(map(len, scores.values())))
        # The share of the layer's importance before each expert; experts with less than t are kept.
        ahead = {}
        for name, of in scores.items():
            falling = np.sort(of)[::-1] / max(of.sum(), 1e-30)
            ahead[name] = np.round(np.cumsum(falling) - falling, _DIGITS)
            ahead[name][: self.least] = -1.0
        rank = np.concatenate([np.arange(len(of)) for of in ahead.values()])
        layer = np.repeat(np.arange(len(ahead)), [len(of) for of in ahead.values()])
        shares = np.concatenate([*ahead.values()])
        first = np.lexsort((rank, shares))[: max(wanted, np.count_nonzero(shares < 0))]
        counts = np.bincount(layer[first], minlength=len(ahead))
        return {name: _best(of, n) for (name, of), n in zip(scores.items(), counts, strict=True)}


CHOICES = {"layer": PerLayer(), "global": Threshold()}


def _side(layer: str) -> str:
    return layer.partition("/")[0]


def _best(scores, count):
    return np.sort(np.argsort(-scores, kind="stable")[:count])  # of equals the first


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pruning(Params):
    """Removes experts.

    Attributes:
        share: the share of experts to remove.
        languages: languages such as "de" (all pairs with the language), and pairs such as "de-en";
            () for all pairs.
        statistics: the pairs whose routing decides.
        choice: chooses the experts to keep.
    """

    share: Rate
    languages: tuple[str, ...] = ()
    statistics: Statistics = ByPair()
    choice: Choice = PerLayer()

    def pairs(self, model_dir: ModelDir) -> tuple[str, ...]:
        """The pairs of the pruned model.

        Raises:
            ValueError: a language or pair that the model was not trained on.
        """
        trained = model_dir.translated_pairs
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
            ValueError: it has no experts, a dispatcher, gating or router that cannot be pruned so,
                or no record of routing; or a layer would keep fewer experts than a token needs.
        """
        moe = model_dir.params.model.moe
        if moe is None:
            raise ValueError(f"{model_dir.path} is of a model without experts; drop --prune.")
        if moe.training.holding != EachOnce():
            raise ValueError(
                f"model.moe.training={moe.training} has its own layout of experts, which --prune "
                f"does not support; drop --prune."
            )
        if not moe.gating.batch_independent:
            raise ValueError(
                f"moe.gating={moe.gating} has no first choices, so the importance of its experts "
                f"is not known. Drop --prune."
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
        if isinstance(moe.router, ByTask) and self.statistics != ByPair():
            raise ValueError(
                f"moe.router={moe.router} uses the experts of the pair's task on both sides, so "
                f"other pairs cannot decide on them. Pass --prune_statistics=pair."
            )
        for layer, experts in self.kept(model_dir).items():
            try:
                moe.gating.check(len(experts))
            except ValueError as error:
                raise ValueError(
                    f"--prune={self.share} leaves {len(experts)} experts in {layer}, and "
                    f"moe.gating={moe.gating} cannot use them: {error} Pass a smaller --prune."
                ) from error

    def kept(self, model_dir: ModelDir) -> dict[str, np.ndarray]:
        """The experts that each layer keeps.

        Raises:
            ValueError: as `pairs` and `importance`.
        """
        record, pairs = RoutingRecord.load(model_dir.routing_path), self.pairs(model_dir)
        return self.choice.keep(importance(record, pairs, self.statistics), self.share)

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
        pairs, kept = self.pairs(model_dir), self.kept(model_dir)
        model_dir, theta = unrolled(model_dir, theta)
        weights, places = dict(theta.flatten()), {}
        for number in {*map(len, kept.values())}:
            places[number] = _expert_axes(model_dir, number)
        for layer, experts in kept.items():
            for name, axis in places[len(experts)].items():
                if name.startswith(f"{layer}/feed_forward/"):
                    weights[name] = np.take(weights[name], experts, axis)
        most: dict[str, int] = {}
        for layer, experts in kept.items():
            most[_side(layer)] = max(most.get(_side(layer), 0), len(experts))
        params, moe = model_dir.params, model_dir.params.model.moe
        assert moe
        most.setdefault("encoder", moe.num_experts)
        params = _with_experts(params, most["encoder"], most.get("decoder"))
        pruned = self.narrow(dataclasses.replace(model_dir, params=params), pairs)
        return pruned, NestedMap.unflatten(weights)

    def narrow(self, model_dir: ModelDir, pairs: Sequence[str] = ()) -> ModelDir:
        """The model with the pairs and the languages that an export keeps, and all its experts.

        Args:
            model_dir: the trained model.
            pairs: that it keeps; () for `pairs` of the model.

        Raises:
            ValueError: as `pairs`.
        """
        pairs = pairs or self.pairs(model_dir)
        sources, targets = map(set, zip(*(pair.split("-") for pair in pairs), strict=True))
        known = targets | (sources if model_dir.task.needs_source_language else set())
        tags = {language: tag for language, tag in model_dir.tags.items() if language in known}
        given = dataclasses.replace(model_dir.params.input, pairs=tuple(pairs))
        params = evolve(model_dir.params, "input", given)
        return dataclasses.replace(model_dir, params=params, tags=tags)


def _with_experts(params, encoder, decoder):
    """The params with other numbers of experts."""
    params = evolve(params, "model.moe.num_experts", encoder)
    return evolve(params, "model.moe.decoder_num_experts", decoder)


def _expert_axes(model_dir, experts) -> dict[str, int]:
    """The axis of the experts in each weight whose shape depends on their number.

    Raises:
        ValueError: a policy cannot choose among so few.
    """
    params = _with_experts(model_dir.params, experts, experts)
    smaller = dict(dataclasses.replace(model_dir, params=params).task.weights().flatten())
    axes = {}
    for name, spec in model_dir.task.weights().flatten():
        now = smaller[name].shape
        for axis, (size, fewer) in enumerate(zip(spec.shape, now, strict=True)):
            if size != fewer:
                axes[name] = axis
    return axes


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
