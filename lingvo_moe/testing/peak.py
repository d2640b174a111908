"""Measures the machine's peak with large matrix products."""

from collections.abc import Callable

import tensorflow as tf

SQUARE = 1024


def products(count: int) -> Callable[[], float]:
    """A function that runs `count` products of SQUARE x SQUARE float32 matrices and waits."""
    square = tf.random.stateless_normal([SQUARE, SQUARE], [1, 2]) / SQUARE**0.5

    @tf.function(autograph=False)
    def run():
        result = square
        for _ in range(count):
            result = tf.matmul(result, square)
        return result[0, 0]

    return lambda: float(run())


def flops(count: int) -> int:
    """Of `products`."""
    return 2 * count * SQUARE**3
