"""Writes a record of routing as a page, pictures, JSON, and a table for a terminal.

DIRECTORY/index.html                    all of it, in one file
DIRECTORY/experts.json                  the numbers
DIRECTORY/load_LAYER.png
DIRECTORY/similarity_SIDE.png
"""

import dataclasses
import math
import pathlib
from collections.abc import Sequence

import numpy as np

from lingvo_moe.core.lines import printable
from lingvo_moe.evaluation.clustering import strength
from lingvo_moe.evaluation.experts import ExpertStatistics, LayerExperts, Preference, Side, analyze
from lingvo_moe.evaluation.experts_plot import draw_load, draw_similarity
from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.reporting.page import escape, image, write_page
from lingvo_moe.reporting.table import Table, rounded

_COLUMNS = (
    "layer",
    "experts",
    "MaxVio",
    "unused",
    "entropy",
    "language–expert bits",
    "by chance",
)


def write_experts(
    experts: ExpertStatistics, directory: str | pathlib.Path, title: str, split: str = "dev"
) -> None:
    """Writes the page, its pictures and the JSON.

    Args:
        experts: the numbers.
        directory: made if missing; files of an earlier page are overwritten.
        title: of the page, such as the model's name.
        split: of the tokens that were counted.
    """
    pictures = draw_all(experts)
    parts = [
        _introduction(experts, split),
        _summary(experts, split),
        *(part for side in experts.sides for part in _side(experts, side, pictures)),
        *(part for layer in experts.layers for part in _layer(layer, pictures)),
    ]
    write_page(directory, f"{title}: experts", parts, pictures, {"experts": to_json(experts)})


def draw_all(experts: ExpertStatistics) -> dict[str, bytes]:
    """Name of a file, without its ending -> PNG."""
    pictures = {}
    for side in experts.sides:
        order = list(side.tree.order)
        languages = [experts.languages[i] for i in order]
        pictures[f"similarity_{side.name}"] = draw_similarity(
            side.similarity[np.ix_(order, order)],
            languages,
            [len(group) for group in side.groups],
            f"{side.name}: languages by routing",
        )
        for layer in side.layers:
            columns = expert_order(layer.shares, side.groups)
            pictures[_file(layer)] = draw_load(
                layer.shares[np.ix_(order, columns)],
                languages,
                columns,
                f"{layer.name}: languages and their experts",
            )
    return pictures


def draw_layers(record: RoutingRecord) -> dict[str, bytes]:
    """Name of a layer -> its heat map as PNG, for TensorBoard.

    Languages and experts have the same order at every evaluation, so the pictures of a run are
    comparable.
    """
    experts = analyze(record)
    return {
        layer.name: draw_load(
            layer.shares, experts.languages, range(len(layer.load)), f"{layer.name}: load"
        )
        for layer in experts.layers
    }


def expert_order(shares: np.ndarray, groups: Sequence[Sequence[int]]) -> list[int]:
    """Experts by the group of languages that uses them most, unused experts last.

    Within a group, experts that are used most exclusively by it are first.

    Args:
        shares: [L, E]; rows of NaN count as zeros.
        groups: of rows, in the order of the page; if there is only one, each row is a group.
    """
    groups = groups if len(groups) > 1 else [(row,) for row in groups[0]]
    known = np.nan_to_num(shares)
    by_group = np.stack([known[list(group)].mean(axis=0) for group in groups])  # [groups, E]
    total = by_group.sum(axis=0)
    own = np.divide(by_group.max(axis=0), total, out=np.zeros(len(total)), where=total > 0)
    keys = (-own, by_group.argmax(axis=0), total == 0)  # lexsort: the last is the first key
    return [int(e) for e in np.lexsort(keys)]


def format_experts(experts: ExpertStatistics) -> str:
    """The table of layers and the groups of languages, for a terminal."""
    groups = (printable(_groups_in_words(experts, side)) for side in experts.sides)
    return "\n".join([_table(experts).to_text(), "", *groups])


def _table(experts: ExpertStatistics) -> Table:
    return Table(_COLUMNS, [_cells(layer) for layer in experts.layers])


def to_json(experts: ExpertStatistics) -> dict:
    """The numbers of the page; undefined ones are null.

    The shares in the heat maps are not included; they are in the record, as pair_load.
    """
    return rounded(
        {
            "languages": experts.languages,
            "without_tokens": experts.silent,
            "choices": experts.choices,
            "layers": [_layer_json(layer) for layer in experts.layers],
            "sides": {side.name: _side_json(experts, side) for side in experts.sides},
        }
    )


def _layer_json(layer: LayerExperts) -> dict:
    return {
        "layer": layer.name,
        "experts": len(layer.load),
        "max_vio": layer.max_vio,
        "unused": layer.unused,
        "entropy": layer.entropy,
        "mutual_information_bits": layer.mutual_information,
        "mutual_information_by_chance_bits": layer.by_chance,
        "load": layer.load,
    }


def _side_json(experts: ExpertStatistics, side: Side) -> dict:
    names = experts.languages
    return {
        "similarity": side.similarity,
        "order": [names[i] for i in side.tree.order],
        "silhouette": side.silhouette,
        "groups": [
            {
                "languages": [names[i] for i in group],
                "prefers": [dataclasses.asdict(preference) for preference in preferences],
            }
            for group, preferences in zip(side.groups, side.preferences, strict=True)
        ],
    }


def _file(layer: LayerExperts) -> str:
    return f"load_{layer.name.replace('/', '_')}"


def _introduction(experts: ExpertStatistics, split: str) -> str:
    names = escape(", ".join(experts.silent))
    silent = f" No tokens in {split}: {names}." if experts.silent else ""
    return (
        f"<p>{len(experts.languages)} languages, {len(experts.layers)} Mixture-of-Experts layers; "
        f"choices of the tokens of {split}.{silent}</p>"
    )


def _summary(experts: ExpertStatistics, split: str) -> str:
    note = (
        '<p class="mark">Entropy of the load: 1 is balance, 0 a single busy expert. '
        "Language–expert bits: mutual information between the expert and the language of a choice. "
        "By chance: the mean of as many choices that are independent of the language. The "
        f"measured value can be lower if all pairs have the same {split} sentences.</p>"
    )
    return _table(experts).to_html() + note


def _cells(layer: LayerExperts) -> tuple[str, ...]:
    return (
        layer.name,
        str(len(layer.load)),
        _format(layer.max_vio, ".2f"),
        str(layer.unused),
        _format(layer.entropy, ".3f"),
        _format(layer.mutual_information, ".4f"),
        _format(layer.by_chance, ".4f"),
    )


def _format(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)


def _side(experts: ExpertStatistics, side: Side, pictures: dict[str, bytes]) -> list[str]:
    parts = [
        f"<h2>Languages in the {escape(side.name)}</h2>",
        f"<p>{escape(_groups_in_words(experts, side))}</p>",
    ]
    if len(side.groups) > 1:
        rows = [
            (_join(experts, group), "; ".join(map(_preference, preferences)) or "none")
            for group, preferences in zip(side.groups, side.preferences, strict=True)
        ]
        columns = ("group", "preferred experts: share of the group's choices (of other groups')")
        parts.append(Table(columns, rows, texts=2).to_html())
    parts += [
        image(pictures[f"similarity_{side.name}"], f"similarity of languages in the {side.name}"),
        '<p class="mark">1: the same shares of experts in every layer; 0: no expert in common (1 '
        "minus the Jensen–Shannon divergence in bits, mean over layers). Languages with few tokens "
        "look less similar than they are.</p>",
    ]
    return parts


def _groups_in_words(experts: ExpertStatistics, side: Side) -> str:
    if side.silhouette is None:
        return f"{side.name}: too few languages for groups."
    how_clear = f"{strength(side.silhouette)} structure, silhouette {side.silhouette:.2f}"
    if len(side.groups) == 1:
        return f"{side.name}: no separate groups of languages ({how_clear})."
    groups = " | ".join(_join(experts, group) for group in side.groups)
    informative = any(layer.mutual_information > layer.by_chance for layer in side.layers)
    doubt = (
        ""
        if informative
        else " Choices depend on languages no more than by chance: these groups may mean nothing."
    )
    return f"{side.name}: {len(side.groups)} groups share experts ({how_clear}): {groups}.{doubt}"


def _join(experts: ExpertStatistics, group) -> str:
    return " ".join(experts.languages[i] for i in group)


def _preference(p: Preference) -> str:
    return f"{p.layer} expert {p.expert}: {100 * p.share:.3g} % ({100 * p.others:.3g} %)"


def _layer(layer: LayerExperts, pictures: dict[str, bytes]) -> list[str]:
    return [
        f"<h2>{escape(layer.name)}</h2>",
        image(pictures[_file(layer)], f"languages by experts, {layer.name}"),
    ]
