"""Pruning of experts with little importance for some languages.  Y MoE layers, P pairs, E experts.

Koishekenov, Berard and Nikoulina 2023 (arXiv 2212.09811): the model is not trained again; the
router chooses among the remaining experts.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from lingvo_moe.config.fields import Params, Rate
from lingvo_moe.config.params import evolve
from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.moe.holding import EachOnce
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.tasks.model_dir import ModelDir

_EQUAL = 1e-9  # smaller than any difference of importance that is not 0


def importance(record: RoutingRecord, pairs: Sequence[str]) -> dict[str, np.ndarray]:
    """The importance of each expert for some language pairs.

    top1(e) · exp(conf1(e)), the mean over the pairs: top1 is the share of a pair's tokens whose
    first choice is e, and conf1 the mean gate of e over those tokens. Experts that would be equal,
    such as those that are never a first choice, are ordered by their share of all choices.

    Args:
        record: of routing on dev.
        pairs: of the pruned model.

    Returns layer -> float [E]. Raises ValueError: the record has no tokens of a pair.
    """
    rows = [record.pairs.index(pair) for pair in pairs]
    first = record.pair_first[:, rows]  # [Y, P, E]
    tokens = first.sum(axis=2, keepdims=True)
    if silent := [p for p, of in zip(pairs, tokens.min(axis=(0, 2)), strict=True) if not of]:
        raise ValueError(f"routing.npz has no dev tokens of {', '.join(silent)}; leave these out.")
    confidence = record.pair_confidence[:, rows] / np.maximum(first, 1)
    scores = first * np.exp(confidence) + _EQUAL * record.pair_load[:, rows]
    means = (scores / tokens).mean(axis=1)
    return {
        layer: of[:count]
        for layer, of, count in zip(record.layers, means, record.num_experts, strict=True)
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pruning(Params):
    """Removes the same share of the experts in each layer: those of least importance on dev.

    Attributes:
        share: the share of experts to remove; each layer keeps at least one.
        languages: languages such as "de" (all pairs with the language), and pairs such as "de-en";
            () for all pairs.
    """

    share: Rate
    languages: tuple[str, ...] = ()

    def pairs(self, model_dir: ModelDir) -> tuple[str, ...]:
        """The pairs of the pruned model. Raises ValueError: a language or pair that the model was
        not trained on."""
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
        """Checks that a model can be pruned. Raises ValueError: it has no experts, none that can be
        removed, or no record of routing; or a layer would keep fewer experts than a token needs."""
        moe = model_dir.params.model.moe
        if moe is None:
            raise ValueError(f"{model_dir.path} is of a model without experts; drop --prune.")
        if (
            moe.training.holding != EachOnce()
            or not moe.gating.batch_independent  # it has no first choices
            or (isinstance(moe.gating, TopK) and moe.gating.limit)  # it needs equal blocks
        ):
            raise ValueError(
                f"--prune cannot remove experts of moe.gating={moe.gating} and moe.training="
                f"{moe.training}; drop --prune."
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
        """The experts that each layer keeps, in ascending order. Raises ValueError: as `pairs` and
        `importance`."""
        scores = importance(RoutingRecord.load(model_dir.routing_path), self.pairs(model_dir))
        counts = {layer: max(1, round((1 - self.share) * len(of))) for layer, of in scores.items()}
        return {
            layer: np.sort(np.argsort(-of, kind="stable")[: counts[layer]])  # of equals the first
            for layer, of in scores.items()
        }

    def apply(self, model_dir: ModelDir, theta: NestedMap) -> tuple[ModelDir, NestedMap]:
        """The pruned model, with the target languages of the pairs and the remaining experts.

        Args:
            model_dir: the trained model, after `check`.
            theta: its weights, arrays.

        Raises ValueError: as `pairs`.
        """
        kept = self.kept(model_dir)
        model_dir, theta = unrolled(model_dir, theta)
        weights = dict(theta.flatten())
        experts = {layer.partition("/")[0]: len(left) for layer, left in kept.items()}
        moe = model_dir.params.model.moe
        assert moe
        params = evolve(
            model_dir.params, "model.moe.num_experts", experts.get("encoder", moe.num_experts)
        )
        params = evolve(params, "model.moe.decoder_num_experts", experts.get("decoder"))
        pruned = dataclasses.replace(model_dir, params=params)
        smaller = dict(pruned.task.weights().flatten())
        for name, weight in weights.items():
            layer = name.partition("/feed_forward/")[0]
            for axis, (size, fewer) in enumerate(
                zip(weight.shape, smaller[name].shape, strict=True)
            ):
                if size != fewer:
                    weights[name] = np.take(weight, kept[layer], axis)
        return self.narrow(pruned), NestedMap.unflatten(weights)

    def narrow(self, model_dir: ModelDir) -> ModelDir:
        """The model with the pairs and the languages that an export keeps, and all its experts.

        Args:
            model_dir: the trained model.

        Raises ValueError: as `pairs`.
        """
        pairs = self.pairs(model_dir)
        sources, targets = map(set, zip(*(pair.split("-") for pair in pairs), strict=True))
        known = targets | (sources if model_dir.task.needs_source_language else set())
        tags = {language: tag for language, tag in model_dir.tags.items() if language in known}
        given = dataclasses.replace(model_dir.params.input, pairs=tuple(pairs))
        params = evolve(model_dir.params, "input", given)
        return dataclasses.replace(model_dir, params=params, tags=tags)


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
