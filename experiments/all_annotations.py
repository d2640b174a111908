"""Annotates weights in use, updates and activations too, as layers and optimizers once did.

Its import does it, so --import=experiments.all_annotations does it in a tool too.
"""

import tensorflow as tf

from lingvo_moe.layers import attention, transformer, transformer_layer
from lingvo_moe.moe import dispatch, feed_forward
from lingvo_moe.sbp import copies
from lingvo_moe.sbp.annotations import annotate


def of_results(owner, name, *dims):
    """Annotates what a function of a module or class returns, by the letters of its rank."""
    plain, by_rank = getattr(owner, name), {len(letters): letters for letters in dims}

    def one(x):
        known = tf.is_tensor(x) and x.shape.rank in by_rank
        return annotate(x, by_rank[x.shape.rank]) if known else x

    setattr(owner, name, lambda *args, **named: tf.nest.map_structure(one, plain(*args, **named)))


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
