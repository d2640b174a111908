"""Writes a record of routing as a page, pictures, JSON, and a table for a terminal.

DIRECTORY/index.html                    all of it, in one file
DIRECTORY/experts.json                  the numbers
DIRECTORY/load_LAYER.png
"""

import itertools
import math
import pathlib
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from lingvo_moe.evaluation.experts import ExpertStatistics, LayerExperts, Side
from lingvo_moe.reporting.figure import legible, to_png
from lingvo_moe.reporting.page import escape, image, write_page
from lingvo_moe.reporting.table import Table, rounded
from lingvo_moe.system.lines import printable

_NUMBERS = {  # column: field of LayerExperts, form
    "MaxVio": ("max_vio", ".2f"),
    "unused": ("unused", "d"),
    "entropy": ("entropy", ".3f"),
    "language–expert bits": ("mutual_information", ".4f"),
    "by chance": ("by_chance", ".4f"),
}
_ABOUT_NUMBERS = (
    "Entropy of the load: 1 is balance, 0 a single busy expert. Language–expert bits: mutual "
    "information between the expert and the language of a choice. By chance: the mean of as many "
    "choices that are independent of the language. The measured value can be lower if all pairs "
    "have the same sentences."
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
    silent = f" No tokens in {split}: {', '.join(experts.silent)}." if experts.silent else ""
    parts = [
        f"<p>{len(experts.languages)} languages, {len(experts.layers)} Mixture-of-Experts layers; "
        f"choices of the tokens of {split}.{escape(silent)}</p>",
        _table(experts).to_html(),
        f'<p class="mark">{_ABOUT_NUMBERS}</p>',
    ]
    for side in experts.sides:
        parts += [
            f"<h2>Languages in the {escape(side.name)}</h2>",
            f"<p>{escape(_groups_in_words(experts, side))}</p>",
        ]
    for layer in experts.layers:
        picture = image(pictures[_file(layer)], f"languages by experts, {layer.name}")
        parts.append(f"<h2>{escape(layer.name)}</h2>{picture}")
    write_page(directory, f"{title}: experts", parts, pictures, {"experts": to_json(experts)})


def draw_all(experts: ExpertStatistics) -> dict[str, bytes]:
    """Name of a file, without its ending -> PNG. Similar languages are side by side.

    Experts are in the order of the mean position of the languages that use them, unused ones last.
    """
    pictures = {}
    for side in experts.sides:
        order = list(itertools.chain(*side.groups))
        languages = [experts.languages[i] for i in order]
        for layer in side.layers:
            shares = layer.shares[order]
            known = np.nan_to_num(shares)
            used = known.sum(axis=0)
            positions = np.divide(
                np.arange(len(order)) @ known, used, out=np.full(len(used), np.inf), where=used > 0
            )
            columns = np.argsort(positions, kind="stable").tolist()
            title = f"{layer.name}: languages and their experts"
            pictures[_file(layer)] = draw_load(shares[:, columns], languages, columns, title)
    return pictures


def format_experts(experts: ExpertStatistics) -> str:
    """The table of layers and the groups of languages, for a terminal."""
    groups = (printable(_groups_in_words(experts, side)) for side in experts.sides)
    return "\n".join([_table(experts).to_text(), "", *groups])


def to_json(experts: ExpertStatistics) -> dict:
    """The numbers of the page but for the shares, which are in the record; undefined: null."""
    fields = [field for field, _ in _NUMBERS.values()]
    layers = [
        {"layer": layer.name, "load": layer.load, **{one: getattr(layer, one) for one in fields}}
        for layer in experts.layers
    ]
    sides = {
        side.name: {
            "silhouette": side.silhouette,
            "groups": [[experts.languages[i] for i in group] for group in side.groups],
        }
        for side in experts.sides
    }
    languages = {"languages": experts.languages, "without_tokens": experts.silent}
    return rounded(languages | {"layers": layers, "sides": sides})


def _table(experts: ExpertStatistics) -> Table:
    def cell(value, form):
        return "–" if math.isnan(value) else format(value, form)

    rows = [
        (
            layer.name,
            str(len(layer.load)),
            *(cell(getattr(layer, field), form) for field, form in _NUMBERS.values()),
        )
        for layer in experts.layers
    ]
    return Table(("layer", "experts", *_NUMBERS), rows)


def _file(layer: LayerExperts) -> str:
    return f"load_{layer.name.replace('/', '_')}"


def _groups_in_words(experts: ExpertStatistics, side: Side) -> str:
    if side.silhouette is None:
        return f"{side.name}: too few languages for groups."
    if len(side.groups) == 1:
        return f"{side.name}: no separate groups of languages (silhouette {side.silhouette:.2f})."
    groups = " | ".join(" ".join(experts.languages[i] for i in group) for group in side.groups)
    informative = any(layer.mutual_information > layer.by_chance for layer in side.layers)
    doubt = " Choices depend on languages no more than by chance: these groups may mean nothing."
    return (
        f"{side.name}: {len(side.groups)} groups share experts (silhouette {side.silhouette:.2f}): "
        f"{groups}.{'' if informative else doubt}"
    )


_LONGEST = 24  # characters of a label


def draw_load(
    shares: np.ndarray, languages: Sequence[str], experts: Sequence[int], title: str
) -> bytes:
    """A heat map, languages down, experts across: each language's choices as shares.

    Args:
        shares: [L, E] in the order to be drawn; rows of NaN are grey.
        languages: L labels.
        experts: E numbers.
        title: above it.
    """
    size = 2 + min(0.42 * max(len(experts), 8), 8.4), 1.2 + min(0.2 * max(len(languages), 4), 40)
    figure = Figure(size, dpi=110, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(legible(title), fontsize=10, loc="left")
    # The scale ends near the 99.5th percentile of the cells above 0, so that a single large cell
    # does not reduce the contrast of all others.
    seen = shares[np.nan_to_num(shares) > 0]
    picture = axes.imshow(
        shares,
        cmap=colormaps["YlGnBu"].with_extremes(bad="#d9dee4"),
        vmin=0.0,
        vmax=float(np.percentile(seen, 99.5, method="higher")) if seen.size else 1.0,
        aspect="auto",
    )
    figure.colorbar(picture, label="share of choices", shrink=min(1.0, 4 / size[1]))
    names = [legible(language, _LONGEST) for language in languages]
    axes.set_yticks(range(len(names)), names, fontsize=8)
    step = -(-len(experts) // 20)
    axes.set_xticks(range(0, len(experts), step), list(map(str, experts[::step])), fontsize=8)
    axes.set_xlabel("expert")
    return to_png(figure, palette=True)
