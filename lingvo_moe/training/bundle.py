"""TensorFlow's bundle format in pieces: each process writes the parts of tensors that it holds.

Any slice can be read, independent of the pieces, and tf.train.load_checkpoint sees whole tensors.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# A stored piece is always read whole. Pieces of this size make small slices cheap to read.
_PIECE_BYTES = 64 << 20

# SaveV2 copies its pieces, so this bounds the additional memory of saving.
_WRITE_BYTES = 256 << 20


class Box(NamedTuple):
    """A part of a tensor: its start and length in each dimension, in elements."""

    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, index: tuple[slice, ...], shape: tuple[int, ...]) -> "Box":
        """The box selected by slices of step 1; missing dimensions are complete."""
        index = (*index, *[slice(None)] * (len(shape) - len(index)))
        if len(index) > len(shape) or any(s.step not in (None, 1) for s in index):
            raise IndexError(f"{index} does not fit {shape}: one slice of step 1 a dimension.")
        bounds = [s.indices(size)[:2] for s, size in zip(index, shape, strict=True)]
        return cls(tuple(b for b, _ in bounds), tuple(max(0, e - b) for b, e in bounds))

    def slices(self, origin: tuple[int, ...]) -> tuple[slice, ...]:
        """The same part as slices of an array that begins at `origin`."""
        offsets = [start - o for start, o in zip(self.starts, origin, strict=True)]
        return tuple(slice(b, b + n) for b, n in zip(offsets, self.lengths, strict=True))

    def spec(self, shape: tuple[int, ...]) -> str:
        """TensorFlow's shape_and_slice: "4 6 0,2:0,6"; "" is the whole tensor."""
        if self.lengths == shape:
            return ""
        extents = (f"{b},{n}" for b, n in zip(self.starts, self.lengths, strict=True))
        return f"{' '.join(map(str, shape))} {':'.join(extents)}"


class TensorSlice(NamedTuple):
    """The part `box` of tensor `name`; `data` is an array that begins at `origin` and holds it."""

    name: str
    shape: tuple[int, ...]  # of the whole tensor
    dtype: tf.DType
    box: Box
    data: np.ndarray | tf.Tensor
    origin: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.box.lengths) * self.dtype.size

    @property
    def is_finite(self) -> bool:
        """Whether it has no NaN and no infinity."""
        if not self.dtype.is_floating:
            return True
        part = self._part()
        if tf.is_tensor(part):
            return bool(tf.reduce_all(tf.math.is_finite(part)))
        return bool(np.isfinite(part).all())

    def tensor(self) -> tf.Tensor:
        """Its values."""
        part = self._part()
        if tf.is_tensor(part):  # sliced on its device, so that SaveV2 copies only this part
            return part
        with tf.device("CPU"):
            return tf.convert_to_tensor(part)

    def _part(self):
        return self.data[self.box.slices(self.origin)]


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a bundle, which is read on demand.

    `stored[0:2, 4:8]` reads one part, `np.asarray(stored)` the whole tensor.
    """

    prefix: str  # of the bundle
    name: str  # the tensor's name in it
    shape: tuple[int, ...]  # of the whole tensor
    tf_dtype: tf.DType  # of its elements, for TensorFlow

    @property
    def dtype(self) -> np.dtype:
        """Of its elements, for NumPy."""
        return np.dtype(self.tf_dtype.as_numpy_dtype)

    @property
    def nbytes(self) -> int:
        """The size of the whole tensor."""
        return math.prod(self.shape) * self.tf_dtype.size

    def __getitem__(self, index: slice | tuple[slice, ...]) -> np.ndarray:
        """Reads the part selected by slices of step 1. Raises IndexError: the index is not made of
        such slices; OSError: the part is damaged, or the bundle was deleted."""
        box = Box.of(index if isinstance(index, tuple) else (index,), self.shape)
        if 0 in box.lengths:
            return np.empty(box.lengths, self.dtype)
        try:
            with tf.device("CPU"):
                (tensor,) = tf.raw_ops.RestoreV2(
                    prefix=self.prefix,
                    tensor_names=[self.name],
                    shape_and_slices=[box.spec(self.shape)],
                    dtypes=[self.tf_dtype],
                )
        except tf.errors.OpError as error:
            raise OSError(
                f"Tensor {self.name!r} of checkpoint {self.prefix} is damaged or gone: "
                f"{error.message}."
            ) from error
        return np.asarray(tensor)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        """The whole tensor; each call reads it again."""
        del copy
        array = self[()]
        return array if dtype is None else array.astype(dtype)


def local_pieces(tensors: Mapping[str, Any], process_index: int) -> Iterator[TensorSlice]:
    """The pieces that this process writes; all processes together write everything once.

    Of an array on the devices of several processes (a jax.Array or an object with its attributes)
    these are the local shards with replica_id 0. All other values are equal in every process, and
    the first process writes them.

    Args:
        tensors: by name; the same names in every process.
        process_index: the number of this process.
    """
    for name, value in tensors.items():
        shards = getattr(value, "addressable_shards", None)
        if process_index and (shards is None or value.is_fully_addressable):
            continue
        if not hasattr(value, "dtype"):
            value = tf.convert_to_tensor(value)
        shape = tuple(map(int, value.shape))
        held = [((), value)]
        if shards is not None:
            held = [(shard.index, shard.data) for shard in shards if shard.replica_id == 0]
        for index, data in held:
            box = Box.of(index, shape)
            dtype = tf.as_dtype(value.dtype)
            data = data if tf.is_tensor(data) else np.asarray(data)
            yield from _cut(TensorSlice(name, shape, dtype, box, data, box.starts))


def write_pieces(prefix: Path, pieces: Iterable[TensorSlice]) -> None:
    """Writes pieces as bundles `prefix`-00000, `prefix`-00001, … of bounded size. Raises OSError,
    tf.errors.OpError: they could not be written."""
    for number, batch in enumerate(_batches(pieces)):
        tf.raw_ops.SaveV2(
            prefix=f"{prefix}-{number:05d}",
            tensor_names=[piece.name for piece in batch],
            shape_and_slices=[piece.box.spec(piece.shape) for piece in batch],
            tensors=[piece.tensor() for piece in batch],
        )


def merge_bundles(prefixes: Iterable[Path], destination: Path) -> None:
    """Merges bundles on one file system into one: renames the data files, writes one index. Raises
    OSError, tf.errors.OpError: it could not be written."""
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(prefix) for prefix in prefixes],
        destination_prefix=str(destination),
        delete_old_dirs=False,
    )


def open_bundle(prefix: Path) -> dict[str, StoredTensor]:
    """The tensors of a bundle by name, none of them read yet. Raises OSError: data is missing; a
    checksum of each piece is verified only when it is read; ValueError, RuntimeError,
    tf.errors.OpError: there is no bundle, or its index is damaged."""
    reader = tf.train.load_checkpoint(str(prefix))
    dtypes = reader.get_variable_to_dtype_map()
    tensors = {
        name: StoredTensor(str(prefix), name, tuple(shape), dtypes[name])
        for name, shape in sorted(reader.get_variable_to_shape_map().items())
    }
    expected = sum(tensor.nbytes for tensor in tensors.values())
    found = sum(path.stat().st_size for path in prefix.parent.glob(f"{prefix.name}.data-*"))
    if found != expected:
        raise OSError(f"its data files hold {found} bytes, its tensors have {expected}")
    return tensors


def _cut(piece: TensorSlice) -> Iterator[TensorSlice]:
    """The piece in parts of at most _PIECE_BYTES, split along the first possible dimension."""
    starts, lengths = piece.box
    axis = next((a for a, length in enumerate(lengths) if length > 1), None)
    if piece.bytes <= _PIECE_BYTES or axis is None:
        yield piece
        return
    step = max(1, _PIECE_BYTES // (piece.bytes // lengths[axis]))
    for offset in range(0, lengths[axis], step):
        box = Box(
            (*starts[:axis], starts[axis] + offset, *starts[axis + 1 :]),
            (*lengths[:axis], min(step, lengths[axis] - offset), *lengths[axis + 1 :]),
        )
        yield from _cut(piece._replace(box=box))


def _batches(pieces: Iterable[TensorSlice]) -> Iterator[list[TensorSlice]]:
    """Lists of pieces that together are at most _WRITE_BYTES, or one larger piece."""
    batch: list[TensorSlice] = []
    size = 0
    for piece in pieces:
        if batch and size + piece.bytes > _WRITE_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += piece.bytes
    if batch:
        yield batch
