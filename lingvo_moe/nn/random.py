"""Stateless random numbers: the same on one device, under XLA, and partitioned over many devices.

The generator is Philox 4x32-10 (Salmon et al. 2011, doi 10.1145/2063384.2063405): a pure function
of a key and a counter gives four 32-bit words at a time. TensorFlow's kernels and XLA give the same
words, but convert them to floats differently, so this module converts them itself. In a partitioned
program XLA's generator would draw the numbers of all devices on every device. Inside
`draw_elementwise` each number is computed from its own index instead, which XLA partitions like
other arithmetic.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

_PHILOX = 1  # TensorFlow's number of it; by default a TPU has another generator
_SCRAMBLE = 0x02461E293EC8F720  # the key with which TensorFlow makes keys and counters from seeds
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_BYTES = 4  # of a word

_elementwise: contextvars.ContextVar[bool] = contextvars.ContextVar("elementwise", default=False)


@contextlib.contextmanager
def draw_elementwise() -> Iterator[None]:
    """Within this context numbers of a static shape are drawn by elementwise operations only.

    The numbers are the same. A partitioned program needs this; on one device the kernel is faster.
    """
    token = _elementwise.set(True)
    try:
        yield
    finally:
        _elementwise.reset(token)


def fold_in(seed: tf.Tensor, data: int | tf.Tensor) -> tf.Tensor:
    """An independent seed, int32 [2], derived from a seed, int32 [2], and a number, int32 []."""
    return tf.stack([_bits([], seed, tf.int32), data])


def words(shape: tf.Tensor | Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    """Random uint32 words of a shape from a seed int32 [2]; the same everywhere."""
    static = _static(shape)
    if not _elementwise.get() or static is None:
        return _bits(shape, seed)
    return _draw(static, seed, list)


def uniform(
    shape: tf.Tensor | Sequence[int], seed: tf.Tensor, low: float = 0.0, high: float = 1.0
) -> tf.Tensor:
    """float32 U[low, high) of a shape, of 23 random bits each, from a seed int32 [2]; bit for bit
    the same everywhere."""
    unit = _unit(words(shape, seed))
    return unit if (low, high) == (0.0, 1.0) else unit * (high - low) + low


def mix(words: tf.Tensor) -> tf.Tensor:
    """uint32 words -> other words, one to one, such that those of words that differ in any bits
    look independent: the last steps of MurmurHash3 (Appleby 2011)."""
    for shift, factor in zip((16, 13), (0x85EBCA6B, 0xC2B2AE35), strict=True):
        words ^= tf.bitwise.right_shift(words, tf.constant(shift, tf.uint32))
        words *= tf.constant(factor, tf.uint32)
    return words ^ tf.bitwise.right_shift(words, tf.constant(16, tf.uint32))


def gumbel(words: tf.Tensor) -> tf.Tensor:
    """float32 Gumbel noise of random uint32 words: finite, of 23 bits each."""
    return -tf.math.log(-tf.math.log(_unit(words) + 2.0**-24))


def keep_mask(tensor: tf.Tensor, seed: tf.Tensor, rate: float) -> tf.Tensor:
    """bool of the tensor's shape: false with probability rate, in [0, 1), at most 255/256, from a
    seed int32 [2]; bit for bit the same everywhere.

    An element uses only 8 random bits, because the generator dominates the time of dropout. An
    element is dropped if its byte is below 256 · rate, which is rounded up or down at random, so
    that the mean is the rate.
    """
    bound = _whole_bound(rate, seed)
    if _elementwise.get() and tensor.shape.is_fully_defined():

        def transform(words):
            return [byte >= bound for word in words for byte in _bytes(word)]

        return _draw(tuple(tensor.shape), seed, transform, values=4 * _BYTES)
    shape, size = tf.shape(tensor), tf.size(tensor)
    if tensor.shape.rank and tensor.shape[-1] is not None and tensor.shape[-1] % _BYTES == 0:
        # A compiler can split these words in the same way as the tensor.
        words = _bits(tf.concat([shape[:-1], [tensor.shape[-1] // _BYTES]], axis=0), seed)
        draws = tf.bitcast(words, tf.uint8)
    else:
        words = _bits([-(-size // _BYTES)], seed)
        draws = tf.reshape(tf.bitcast(words, tf.uint8), [-1])[:size]
    return tf.reshape(draws, shape) >= tf.cast(bound, tf.uint8)


def normal(shape: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    """float32 N(0, 1) of a shape by Box and Muller's transform, from a seed int32 [2]; the same
    everywhere up to rounding."""
    if _elementwise.get():
        return _draw(tuple(shape), seed, _box_muller)
    size = math.prod(shape)
    count = -(-size // 4) * 4
    words = tf.unstack(tf.reshape(_bits([count], seed), [-1, 4]), axis=1)
    values = tf.reshape(tf.stack(_box_muller(words), axis=1), [-1])
    return tf.reshape(values[:size], shape)


def _static(shape):
    value = tf.get_static_value(shape) if tf.is_tensor(shape) else shape
    return None if value is None else tuple(int(size) for size in value)


def _bits(shape, seed: tf.Tensor, dtype: tf.DType = tf.uint32) -> tf.Tensor:
    """Random words from TensorFlow's kernel."""
    return _generate(shape, *_key_and_counter(seed), dtype)


def _key_and_counter(seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """uint64 [1] and [2], as `tf.random.stateless_uniform` makes them for Philox from this seed.

    That function makes 50 operations, this one 17: models are traced faster.
    """
    scramble = tf.constant([_SCRAMBLE], tf.uint64)
    words = _generate([2, 2], scramble, _wide(seed, tf.uint64), tf.uint32)
    key, high = tf.split(tf.bitcast(words, tf.uint64), 2)
    return key, tf.concat([tf.zeros([1], tf.uint64), high], axis=0)


def _wide(seed: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The seed as numbers of 64 bits, not negative: TensorFlow's kernels extend the sign, XLA does
    not."""
    return tf.cast(tf.bitcast(tf.convert_to_tensor(seed, tf.int32), tf.uint32), dtype)


def _generate(shape, key, counter, dtype):
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.convert_to_tensor(shape, tf.int32),
        key=key,
        counter=counter,
        alg=_PHILOX,
        dtype=dtype,
    )


def _unit(words: tf.Tensor) -> tf.Tensor:
    """float32 U[0, 1): the low 23 bits of uint32 words as the mantissa of a number in [1, 2)."""
    bits = tf.bitcast(words, tf.int32) & 0x7FFFFF | 0x3F800000
    return tf.bitcast(bits, tf.float32) - 1.0


def _box_muller(words: list[tf.Tensor]) -> list[tf.Tensor]:
    """Four normals from four words: each two words give a sine and a cosine part."""
    values = []
    for first, second in (words[:2], words[2:]):
        radius = tf.sqrt(-2.0 * tf.math.log(tf.maximum(_unit(first), 1e-7)))
        angle = 2.0 * math.pi * _unit(second)
        values += [radius * tf.sin(angle), radius * tf.cos(angle)]
    return values


def _draw(
    shape: tuple[int, ...],
    seed: tf.Tensor,
    transform: Callable[[list[tf.Tensor]], list[tf.Tensor]],
    values: int = 4,
) -> tf.Tensor:
    """Elements in row-major order are transform(words of block 0), of block 1, …; transform gives
    for the four words of each block `values` tensors of the same shape, a power of two."""
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=_wide(seed, tf.int64))
    if shape and shape[-1] % values == 0:
        block = _row_major((*shape[:-1], shape[-1] // values))
        drawn = transform(tf.unstack(_philox(block, key, counter)))
        return tf.reshape(tf.stack(drawn, axis=-1), shape)
    index = _row_major(shape)  # rows do not begin at blocks: each element selects its value
    bits = tf.constant(values.bit_length() - 1, tf.uint64)
    block, place = tf.bitwise.right_shift(index, bits), index % values
    first, *others = transform(tf.unstack(_philox(block, key, counter)))
    for i, value in enumerate(others, 1):
        first = tf.where(place == i, value, first)
    return first


def _row_major(shape: tuple[int, ...]) -> tf.Tensor:
    """uint64: the number of each element in row-major order."""
    index = tf.zeros(shape, tf.uint64)
    for axis, size in enumerate(shape):
        places = tf.cast(tf.range(size), tf.uint64) * math.prod(shape[axis + 1 :])
        index += tf.reshape(places, [size] + [1] * (len(shape) - axis - 1))
    return index


@tf.function(autograph=False)
def _philox(block: tf.Tensor, key: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
    """The four random words of each block, uint32 [4, ...]: block, uint64 [...], is added to the
    counter, uint64 [2], a number of 128 bits, low half first; key uint64 [1]."""
    low = counter[0] + block
    high = counter[1] + tf.cast(low < block, tf.uint64)  # the carry
    c0, c1, c2, c3 = (half for word in (low, high) for half in (_low(word), _high(word)))
    k0, k1 = _low(key[0]), _high(key[0])
    for _ in range(_ROUNDS):
        product0, product1 = (
            tf.cast(word, tf.uint64) * tf.constant(multiplier, tf.uint64)
            for word, multiplier in zip((c0, c2), _MULTIPLIERS, strict=True)
        )
        c0, c2 = _high(product1) ^ c1 ^ k0, _high(product0) ^ c3 ^ k1
        c1, c3 = _low(product1), _low(product0)
        k0, k1 = (k + tf.constant(s, tf.uint32) for k, s in zip((k0, k1), _KEY_STEPS, strict=True))
    return tf.stack([c0, c1, c2, c3])


def _whole_bound(rate: float, seed: tf.Tensor) -> tf.Tensor:
    """uint32 []: 256 · rate, below 256, rounded up with the probability of its fraction."""
    draw = fold_in(seed, 0)[0] & 0xFFFF
    return tf.cast(tf.minimum((round(rate * 2**24) + draw) // 2**16, 255), tf.uint32)


def _bytes(word: tf.Tensor) -> list[tf.Tensor]:
    """The bytes of uint32 words, low ones first, in uint32."""
    shifts = (tf.constant(8 * i, tf.uint32) for i in range(_BYTES))
    return [tf.bitwise.right_shift(word, shift) & 0xFF for shift in shifts]


def _low(word: tf.Tensor) -> tf.Tensor:
    return tf.cast(word, tf.uint32)


def _high(word: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.bitwise.right_shift(word, tf.constant(32, tf.uint64)), tf.uint32)
