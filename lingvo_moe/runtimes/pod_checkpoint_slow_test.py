"""The state of the paper's 600B model, 1:1000, written by 64 simulated processes, read by 48.

The names and the splits are those of m4.MoE2048E36L on 2048 devices; width, hidden units, heads and
vocabularies are 32 times smaller, so that there are 600M weights.
"""

import dataclasses
import functools
import itertools
import math
import resource
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lingvo_moe.core.params import override
from lingvo_moe.core.registry import get_params
from lingvo_moe.sharding.annotations import Mesh, assignment
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.shards import Barrier, Shard, Sharded
from lingvo_moe.training import checkpoint as checkpoint_module
from lingvo_moe.training.checkpoint import Checkpointer
from lingvo_moe.training.process import Process

pytestmark = pytest.mark.slow

DEVICES, WRITERS, READERS, STEP = 2048, 64, 48, 1000
SMALLER = (
    *("model.model_dim=32", "model.hidden_dim=256", "model.head_dim=4"),
    *("source_vocab_size=2048", "target_vocab_size=1024"),
    "optimizer.min_dim_size_to_factor=32",
)
PERIOD = 1_048_573  # of the contents; a prime, so that no two experts hold the same
# Of the processes, so many work at the same time: each has its part of the state in memory.
_ROOM = threading.Semaphore(8)


@functools.cache
def specs():
    """Name -> shape, dtype and dims of every tensor of the state."""
    from lingvo_moe.runtimes.lowering import state_specs

    params = override(get_params("m4.MoE2048E36L"), SMALLER)
    weights = TranslationTask(params).weights()
    return state_specs(weights, params.optimizer.slots(weights))


def contents(name, index=()):
    """The part of a tensor that slices select: a number for each element's place and the name."""
    shape = specs()[name].shape
    places = np.int64(zlib.crc32(name.encode()))
    for axis, size in enumerate(shape):
        part = index[axis] if axis < len(index) else slice(None)
        column = np.arange(size)[part] * math.prod(shape[axis + 1 :])
        places = places + column.reshape(-1, *[1] * (len(shape) - axis - 1))
    return np.asarray(places % PERIOD, specs()[name].dtype)


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a tensor that is computed when it is read."""

    name: str
    index: tuple[slice, ...]

    def __array__(self, dtype=None, copy=None):
        return contents(self.name, self.index)


@functools.cache
def split_dimension(name):
    """The dimension that the 2048 devices split, or None."""
    spec, mesh = specs()[name], Mesh(("expert",), (DEVICES,))
    sharding = get_params("m4.MoE2048E36L").sharding
    axes = assignment(spec.dims, spec.shape, mesh, sharding.storage_rules(mesh))
    return next((i for i, group in enumerate(axes) if group), None)


@functools.cache
def parts(name, pieces):
    """The slices of each of so many pieces along the dimension that is split."""
    axis = split_dimension(name)
    if axis is None:
        return [()] * pieces
    size = specs()[name].shape[axis]
    bounds = [size * i // pieces for i in range(pieces + 1)]
    return [(*[slice(None)] * axis, slice(begin, end)) for begin, end in itertools.pairwise(bounds)]


def held_by(process):
    """What one of the writers holds: 32 devices, each with its piece of what is split."""
    state, own = {}, DEVICES // WRITERS
    for name, spec in specs().items():
        split = split_dimension(name) is not None
        shards = []
        for device in range(process * own, (process + 1) * own):
            index = parts(name, DEVICES)[device] if split else ()
            if split or device == 0:  # of copies, the first alone is written
                shards.append(Shard(index, Part(name, index), 0 if split else device))
        state[name] = Sharded(spec.shape, spec.dtype, shards, False)
    return state


def together(processes, act):
    """What act(process) returns or raises in each of so many processes at once."""
    meeting = Barrier(processes, timeout=900)

    def run(index):
        return act(Process(index, meeting.minimum_of(index)))

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(run, range(processes)))


def compare(stored, name, reader):
    """Reads what one of the readers holds of a tensor; returns the number of its elements."""
    index = parts(name, READERS)[reader]
    expected = contents(name, index)
    assert stored.shape == specs()[name].shape
    np.testing.assert_array_equal(stored[index], expected, err_msg=name)
    return expected.size


def test_64_write_and_48_read(tmp_path, monkeypatch):
    pytest.importorskip("jax")
    write = checkpoint_module.write_pieces

    def write_in_turn(*arguments):
        with _ROOM:
            write(*arguments)

    monkeypatch.setattr(checkpoint_module, "write_pieces", write_in_turn)
    begun = time.monotonic()
    together(WRITERS, lambda p: Checkpointer(tmp_path, process=p).save(STEP, held_by(p.index)))
    written = time.monotonic()
    files = list((tmp_path / f"step_{STEP:08d}").glob("state.data-*"))
    assert len(files) == WRITERS

    def read(process):
        seen = []

        def use(checkpoint):
            assert checkpoint.tensors.keys() == specs().keys()
            for name in specs():
                with _ROOM:
                    seen.append(compare(checkpoint.tensors[name], name, process.index))

        assert Checkpointer(tmp_path, process=process).resume(use).step == STEP
        return sum(seen)

    elements = together(READERS, read)
    whole = {name: math.prod(spec.shape) for name, spec in specs().items()}
    split = sum(size for name, size in whole.items() if split_dimension(name) is not None)
    # Together they read what is split once, and the rest once each.
    assert sum(elements) == split + READERS * (sum(whole.values()) - split)
    weights = sum(size for name, size in whole.items() if name.startswith("theta/"))
    assert weights == pytest.approx(600e6, rel=0.1)
    print(
        f"\n{weights / 1e6:.0f}M weights, {sum(f.stat().st_size for f in files) / 1e9:.2f} GB: "
        f"written in {written - begun:.0f} s, read in {time.monotonic() - written:.0f} s, "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB of memory"
    )
