"""What a training step sends with few annotations, and with those that layers once had.

JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=8 \
    python -m experiments.few_annotations > benchmarks/results/few_annotations.csv
"""

import csv
import importlib
import sys

from lingvo_moe.testing.annotated_steps import annotated, row_of
from lingvo_moe.testing.training_on_mesh import MESH

MESHES = (
    *("data:8", "expert:8", "data:4,model:2", MESH, "data:4,expert:2"),
    "data:2,expert:2,model:2",
)
FACTORED = "optimizer.min_dim_size_to_factor=8"  # second moments
CASES = (
    *((mesh, dispatcher, "") for mesh in MESHES for dispatcher in ("Einsum", "Gather")),
    (MESH, "Einsum", FACTORED),
)


def main():
    """Prints the table."""
    output = csv.writer(sys.stdout, lineterminator="\n")
    output.writerow(["mesh", "dispatcher", "set", "annotations", "tensors", "collectives", "bytes"])
    output.writerows(row_of("few", *case) for case in CASES)
    importlib.import_module("experiments.all_annotations")
    annotated.cache_clear()
    output.writerows(row_of("all", *case) for case in CASES)


if __name__ == "__main__":
    main()
