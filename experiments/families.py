"""Do related languages share experts?

python -m experiments.families LOGDIR/routing.npz experiments/results/experts_families.csv

For each MoE layer: languages are compared by how often their tokens choose each expert, minus the
mean of all languages. The table has the mean cosine of two languages of a family, that of two of
different families, and how many languages are most similar to one of their family. Both are
compared with families whose languages are drawn at random. families.csv names the families of
eBible's languages; those without relatives in the corpus are left out.
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
        The mean cosine of the first, and of the second; the share of random families of the same
        sizes whose difference is at least as large; the share of languages whose most similar
        language is of their family, and its mean over random families.
    """
    shares = load / load.sum(axis=1, keepdims=True)
    shares -= shares.mean(axis=0)
    unit = shares / np.linalg.norm(shares, axis=1, keepdims=True)
    cosines = unit @ unit.T
    others = ~np.eye(len(labels), dtype=bool)
    nearest = np.where(others, cosines, -np.inf).argmax(axis=1)

    def measure(labels):
        same = labels[:, None] == labels
        inside, outside = cosines[same & others].mean(), cosines[~same].mean()
        return inside, outside, (labels[nearest] == labels).mean()

    inside, outside, near = measure(labels)
    rng = np.random.default_rng(0)
    draws = np.array([measure(rng.permutation(labels)) for _ in range(_DRAWS)])
    p = (draws[:, 0] - draws[:, 1] >= inside - outside).mean()
    return inside, outside, p, near, draws[:, 2].mean()


if __name__ == "__main__":
    main()
