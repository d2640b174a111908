"""Peer: only the matrix products with a model's weights, in float32.

python benchmarks/_peers/decode_products.py dense|experts

A search in float32 cannot be faster than they are. The products of attention are left out. The
model with experts is that of decode_imported.py; its tokens are divided evenly among the experts.
"""

import functools
import sys

import tensorflow as tf
from _serve import SHAPE, STEPS, serve

_M, _H = SHAPE["model_dim"], SHAPE["hidden_dim"]
_ND = SHAPE["num_heads"] * SHAPE["head_dim"]
_EXPERTS_OF_TOKEN = 2
_PIECES = 300  # size of the vocabulary of the model with experts
# [columns of the rows, columns of the result] of each product of a layer; q, k and v are one.
_SELF_ATTENTION, _FEED_FORWARD = ((_M, 3 * _ND), (_ND, _M)), ((_M, _H), (_H, _M))
_CROSS_ATTENTION = ((_M, _ND), (_ND, _M))
_MEMORY = ((_M, 2 * _ND),)  # keys and values of the source


def main() -> None:
    """Answers requests on standard input; see _serve."""
    experts = {"dense": 1, "experts": SHAPE["num_experts"]}[sys.argv[1]]
    every_n = SHAPE["every_n"] if experts > 1 else SHAPE["layers"] + 1
    moe_layers = SHAPE["layers"] // every_n
    dense_layers = SHAPE["layers"] - moe_layers
    size = _PIECES if experts > 1 else SHAPE["vocab_size"]

    @functools.cache
    def products(attention, output, used):
        """The products of one step; attention is a tuple."""
        shapes = [*attention * SHAPE["layers"], *_FEED_FORWARD * dense_layers, *output]
        return _products(shapes, _FEED_FORWARD * used * moe_layers)

    def run(attention, output, tokens):
        """The products of some tokens, which are divided evenly among the experts."""
        choices = tokens * _EXPERTS_OF_TOKEN
        used = min(experts, choices)
        return products(attention, output, used)(_rows(tokens), _rows(choices // used))

    def step(batch=1, beam=1):
        run(_SELF_ATTENTION + _MEMORY, (), batch * STEPS)
        for _ in range(STEPS):
            result = run(_SELF_ATTENTION + _CROSS_ATTENTION, ((_M, size),), batch * beam)
        return float(result[0][0, 0])

    serve(step, f"TensorFlow {tf.__version__}, products alone")


def _products(shapes, shapes_of_experts):
    """A function that does the products: all rows with dense weights, experts with their rows."""
    weights, of_experts = (
        [tf.random.stateless_normal(shape, [0, 0]) for shape in some]
        for some in (shapes, shapes_of_experts)
    )

    @tf.function(autograph=False, reduce_retracing=True)
    def products(rows, rows_of_expert):
        pairs = [(rows, weight) for weight in weights]
        pairs += [(rows_of_expert, weight) for weight in of_experts]
        return [tf.matmul(some[weight.shape[0]], weight) for some, weight in pairs]

    return products


@functools.cache
def _rows(count):
    """For each number of columns, that many rows."""
    return {size: tf.random.stateless_normal([count, size], [0, 0]) for size in {_M, _H, _ND}}


if __name__ == "__main__":
    main()
