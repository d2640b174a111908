"""Do related languages share experts?

python -m experiments.families LOGDIR/routing.npz experiments/results/experts_families.csv

For each MoE layer: languages are compared by how often their tokens choose each expert, minus the
mean over these languages. The table has the mean cosine of two languages of a family, as a mean
over families; that of two languages of different families; and how many languages are most similar
to one of their family. The difference of cosines (p) and this number are compared with families
whose languages are drawn at random.

families.csv has the families of eBible's languages as Ethnologue names them; linguists dispute the
largest ones. Languages without relatives in the corpus are left out. Related languages often also
have the same books, so the same English verses in dev.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from experiments.tables import write_csv
from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.reporting.table import Table

FAMILIES = Path(__file__).parent / "families.csv"
COLUMNS = (
    *("layer", "languages", "cosine in a family", "of two families", "p"),
    *("nearest is of the family, %", "at random, %"),
)
_DRAWS = 1000


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("routing", type=Path, help="of a training from English")
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    record, of = RoutingRecord.load(args.routing), families()
    family = [of.get(pair.split("-")[1]) for pair in record.pairs]
    counted = record.pair_load[0].any(axis=1)  # pairs with dev text
    known = [i for i in range(len(family)) if family[i] and counted[i]]
    labels = np.array([family[i] for i in known])
    rows = []
    for layer, load in zip(record.layers, record.pair_load, strict=True):
        inside, outside, p, nearest, chance = compare(load[known], labels)
        shown = f"{inside:.3f}", f"{outside:.3f}", f"{p:.3f}"
        rows.append([layer, str(len(known)), *shown, f"{100 * nearest:.0f}", f"{100 * chance:.0f}"])
    table = Table(COLUMNS, rows)
    print(table.to_text())
    write_csv(args.output, table)


def families() -> dict[str, str]:
    """Language -> family."""
    with FAMILIES.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {code: row["family"] for row in rows for code in row["languages"].split()}


def compare(load: np.ndarray, labels: np.ndarray) -> tuple[float, float, float, float, float]:
    """Compares pairs of languages of one family with pairs of two.

    Args:
        load: [L, E], choices of each expert by tokens of a language.
        labels: [L], families.

    Returns:
        The mean cosine of the first, as a mean over families, and of the second; p, the share of
        draws, with the real families counted as one, whose difference is at least as large; the
        share of languages whose most similar language is of their family, and its mean over
        random families.

    Raises:
        ValueError: a language's choices are exactly the mean, as if all experts are always chosen.
    """
    shares = load / load.sum(axis=1, keepdims=True)
    shares -= shares.mean(axis=0)
    norms = np.linalg.norm(shares, axis=1, keepdims=True)
    if norms.min() < 1e-9:
        raise ValueError("A language chooses experts exactly as the average does: no cosine.")
    unit = shares / norms
    cosines = unit @ unit.T
    others, names = ~np.eye(len(labels), dtype=bool), np.unique(labels)
    nearest = np.where(others, cosines, -np.inf).argmax(axis=1)

    def measure(labels):
        same = labels[:, None] == labels
        blocks = [cosines[labels == name][:, labels == name] for name in names]
        inside = np.mean([_mean_of_pairs(block) for block in blocks])
        return inside, cosines[~same].mean(), (labels[nearest] == labels).mean()

    inside, outside, near = measure(labels)
    rng = np.random.default_rng(0)
    draws = np.array([measure(rng.permutation(labels)) for _ in range(_DRAWS)])
    p = (1 + np.sum(draws[:, 0] - draws[:, 1] >= inside - outside)) / (1 + _DRAWS)
    return inside, outside, p, near, draws[:, 2].mean()


def _mean_of_pairs(cosines):
    """The mean of a matrix without its diagonal of ones."""
    count = len(cosines)
    return (cosines.sum() - count) / (count * (count - 1))


if __name__ == "__main__":
    main()
