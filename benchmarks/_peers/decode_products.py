"""Peer: only the matrix products with the dense model's weights, in float32.

A search in float32 cannot be faster than they are. The products of attention are left out.
"""

import tensorflow as tf
from _serve import SHAPE, STEPS, serve

_M, _H, _V = SHAPE["model_dim"], SHAPE["hidden_dim"], SHAPE["vocab_size"]
_ND = SHAPE["num_heads"] * SHAPE["head_dim"]
# [columns of the rows, columns of the result] of each product of a layer; q, k and v are one.
_SELF_ATTENTION, _FEED_FORWARD = [(_M, 3 * _ND), (_ND, _M)], [(_M, _H), (_H, _M)]
_ENCODER = [*_SELF_ATTENTION, *_FEED_FORWARD]
_MEMORY = [(_M, 2 * _ND)]  # keys and values of the source
_DECODER = [*_SELF_ATTENTION, (_M, _ND), (_ND, _M), *_FEED_FORWARD]


def main() -> None:
    """Answers requests on standard input; see _serve."""
    once = _products((_ENCODER + _MEMORY) * SHAPE["layers"])
    each_step = _products([*_DECODER * SHAPE["layers"], (_M, _V)])

    def step(batch=1, beam=1):
        once(_rows(batch * STEPS))
        rows = _rows(batch * beam)
        for _ in range(STEPS):
            result = each_step(rows)
        return float(result[-1][0, 0])

    serve(step, f"TensorFlow {tf.__version__}, products alone")


def _products(shapes):
    """A function that multiplies rows with weights of these shapes."""
    weights = [tf.random.stateless_normal(shape, [0, 0]) for shape in shapes]

    @tf.function(autograph=False, reduce_retracing=True)
    def products(rows):
        return [tf.matmul(rows[weight.shape[0]], weight) for weight in weights]

    return products


def _rows(count):
    """For each number of columns, that many rows."""
    return {size: tf.random.stateless_normal([count, size], [0, 0]) for size in {_M, _H, _ND}}


if __name__ == "__main__":
    main()
