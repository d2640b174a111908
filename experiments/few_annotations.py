"""What a training step sends with few annotations, and with those that layers once had.

JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=8 \
    python -m experiments.few_annotations > benchmarks/results/few_annotations.csv
"""

import csv
import sys

import tensorflow as tf

from lingvo_moe.layers import attention, transformer, transformer_layer
from lingvo_moe.moe import dispatch, feed_forward
from lingvo_moe.sbp import copies
from lingvo_moe.sbp.annotations import annotate
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
    _annotate_all()
    annotated.cache_clear()
    output.writerows(row_of("all", *case) for case in CASES)


def _annotate_all():
    """Annotates weights in use, updates and activations too, as layers and optimizers once did."""

    def of_results(owner, name, *dims):
        plain, by_rank = getattr(owner, name), {len(letters): letters for letters in dims}

        def one(x):
            known = tf.is_tensor(x) and x.shape.rank in by_rank
            return annotate(x, by_rank[x.shape.rank]) if known else x

        setattr(
            owner, name, lambda *args, **named: tf.nest.map_structure(one, plain(*args, **named))
        )

    copies.rest_differs = lambda dims=None: True
    of_results(attention, "dropout", "BNTL")
    of_results(attention.Attention, "_heads", "BNTD")
    of_results(attention.Attention, "fprop", "BTM")
    of_results(transformer, "dropout", "BTM")
    of_results(transformer_layer, "dropout", "BTM")
    of_results(feed_forward, "dropout", "RH", "ErH")
    of_results(dispatch.Dispatcher, "in_groups", "GSM")
    of_results(dispatch.Einsum, "_one_hot", "GSeC")
    of_results(dispatch, "Dispatched", "GSM")
    plain = copies.einsum
    copies.einsum = lambda equation, *given: (
        annotate(plain(equation, *given), "BTV") if "BTV" in equation else plain(equation, *given)
    )


if __name__ == "__main__":
    main()
