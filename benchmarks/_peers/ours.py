"""Peer: this package.  python benchmarks/_peers/ours.py [PATH=VALUE ...]

The shape of _serve.py; overrides as in --set, and matmul=True for large products alone.
"""

import sys

import tensorflow as tf
from _serve import SHAPE, batch, serve

import lingvo_moe.tools  # noqa: F401  (TensorFlow logs less when it starts)
from lingvo_moe.config import registry
from lingvo_moe.config.params import override
from lingvo_moe.jobs.training import train_step
from lingvo_moe.nn.layer import count_weights
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.peak import SQUARE, flops, products

MODEL = (
    f"model.num_encoder_layers={SHAPE['layers']}",
    f"model.num_decoder_layers={SHAPE['layers']}",
    f"model.model_dim={SHAPE['model_dim']}",
    f"model.hidden_dim={SHAPE['hidden_dim']}",
    f"model.num_heads={SHAPE['num_heads']}",
    f"model.head_dim={SHAPE['head_dim']}",
    f"model.moe.num_experts={SHAPE['num_experts']}",
    f"model.moe.every_n={SHAPE['every_n']}",
    "model.moe.gating=TopK(k=2)",
    f"source_vocab_size={SHAPE['vocab_size']}",
    f"target_vocab_size={SHAPE['vocab_size']}",
    f"input.batch_size={SHAPE['batch_size']}",
    f"input.source_length={SHAPE['length']}",
    f"input.target_length={SHAPE['length']}",
)
_PRODUCTS = 40


def main() -> None:
    """Answers requests on standard input; see _serve."""
    overrides = sys.argv[1:]
    if overrides == ["matmul=True"]:
        serve(products(_PRODUCTS), f"{SQUARE}³ products", flops=flops(_PRODUCTS))
        return
    params = override(registry.get_params("tiny.MoE"), [*MODEL, *overrides])
    task = TranslationTask(params)
    runtime = Local(task, train_step(task))
    runtime.initialize(0)
    feed = _feed(params)

    def step():
        metrics = runtime.train(feed)
        return float(metrics.nll / metrics.tokens)

    about = f"TensorFlow {tf.__version__}; {' '.join(overrides)}"
    serve(step, about, weights=count_weights(task.weights()))


def _feed(params):
    """The batch of all peers, repeated or cut to the rows that overrides ask for."""
    rows = params.input.batch_size
    ids = {name: value.astype("int32") for name, value in batch().items()}
    repeats = -(-rows // SHAPE["batch_size"])
    feed = NestedMap({n: v.repeat(repeats, axis=0)[:rows] for n, v in ids.items()})
    ones = 0 * feed.source_ids + 1
    feed.update(source_segment_ids=ones, target_segment_ids=ones)
    feed.update(source_pair_ids=0 * ones, target_pair_ids=0 * ones)
    return feed


if __name__ == "__main__":
    main()
