"""jax.Arrays over virtual devices: saved on eight, restored on fewer and by two processes."""

import numpy as np
import pytest

from lingvo_moe.testing.devices import free_address, variables
from lingvo_moe.testing.forks import Fork, wait_for_all
from lingvo_moe.training.checkpoint import Checkpointer

pytest.importorskip("jax")

_COMMON = """
import sys
from pathlib import Path
import jax, numpy as np, ml_dtypes
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from lingvo_moe.training.checkpoint import Checkpointer
from lingvo_moe.training.process import Process

directory, process = Path(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(1)
STATE = {
    "theta/rows": rng.standard_normal((8, 4), np.float32),
    "theta/columns": rng.standard_normal((4, 8), np.float32),
    "theta/both": rng.standard_normal((8, 8), np.float32).astype(ml_dtypes.bfloat16),
    "theta/joined": rng.standard_normal((16, 3), np.float32),
    "theta/deep": rng.integers(0, 99, (2, 8, 8), np.int32),
    "theta/replicated": rng.standard_normal((3, 5), np.float32),
    "theta/partly": rng.standard_normal((4, 2), np.float32),
    "step": np.int32(7),
}
SPECS = {
    "theta/rows": P("x"), "theta/columns": P(None, "y"), "theta/both": P("x", "y"),
    "theta/joined": P(("x", "y")), "theta/deep": P(None, "y", "x"), "theta/replicated": P(),
    "theta/partly": P("y"), "step": P(),
}
OTHER_SPECS = SPECS | {
    "theta/rows": P(None, "y"), "theta/both": P(("y", "x")), "theta/deep": P("x"),
}

def mesh(*shape):
    return Mesh(np.array(jax.devices()[:np.prod(shape)]).reshape(shape), ("x", "y"))

def place(source, mesh, specs):
    return {
        name: jax.make_array_from_callback(
            tuple(value.shape), NamedSharding(mesh, specs[name]), value.__getitem__)
        for name, value in source.items()}

def check(state):
    for name, expected in STATE.items():
        assert state[name].dtype == expected.dtype, name
        for shard in state[name].addressable_shards:
            held = np.asarray(shard.data)
            assert held.tobytes() == np.asarray(expected[shard.index]).tobytes(), name
"""

_EIGHT_DEVICES = """
assert len(jax.devices()) == 8
checkpoints = Checkpointer(directory)
for step, shape in enumerate([(8, 1), (2, 4), (1, 1)], 1):
    checkpoints.save(step, place(STATE, mesh(*shape), SPECS))
    for restored_on in [(1, 1), (2, 1), (2, 2), (2, 4)]:
        check(place(checkpoints.read(step).tensors, mesh(*restored_on), OTHER_SPECS))
np.savez(directory / "expected.npz", **{n: np.asarray(v, np.float32) for n, v in STATE.items()})
"""

_TWO_PROCESSES = """
jax.distributed.initialize(sys.argv[3], 2, process)
assert (len(jax.devices()), len(jax.local_devices())) == (4, 2)
minimum = lambda value: int(multihost_utils.process_allgather(np.int32(value)).min())
checkpoints = Checkpointer(directory, process=Process(process, minimum))
restored = {}
use = lambda checkpoint: restored.update(place(checkpoint.tensors, mesh(2, 2), OTHER_SPECS))
assert checkpoints.resume(use).step == 3
check(restored)
checkpoints.save(4, {**restored, "local": jax.numpy.arange(3), "input/draws": np.int64(9)})
tensors = checkpoints.read(4).tensors
check(place({name: tensors[name] for name in STATE}, mesh(4, 1), SPECS))
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts a script on some devices."""

    def start(script, *arguments, devices):
        path = tmp_path_factory.mktemp("script") / "script.py"
        path.write_text(_COMMON + script)
        return Fork(str(path), *map(str, arguments), variables=variables(devices))

    return start


def _wait(*processes):
    for done in wait_for_all(processes):
        assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def directory(tmp_path_factory, start):
    path = tmp_path_factory.mktemp("checkpoints")
    _wait(start(_EIGHT_DEVICES, path, 0, devices=8))
    return path


def test_saved_on_eight_devices_restored_on_fewer(directory):
    # What the script checks bit by bit; here, that one process reads the whole without JAX.
    expected = np.load(directory / "expected.npz")
    assert Checkpointer(directory).steps() == [1, 2, 3]
    for step in (1, 2, 3):
        tensors = Checkpointer(directory).read(step).tensors
        assert tensors.keys() == set(expected.files)
        for name in expected.files:
            np.testing.assert_array_equal(np.asarray(tensors[name], np.float32), expected[name])
    # Replicas are not written again: 4 bytes an element, 2 for bfloat16.
    data = (directory / "step_00000002").glob("state.data-*")
    assert sum(p.stat().st_size for p in data) == 4 * (32 + 32 + 48 + 128 + 15 + 8 + 1) + 2 * 64


def test_two_processes_with_two_devices_each(directory, start):
    address = free_address()
    _wait(*(start(_TWO_PROCESSES, directory, i, address, devices=2) for i in range(2)))
    tensors = Checkpointer(directory).read(4).tensors
    expected = np.load(directory / "expected.npz")
    for name in expected.files:
        np.testing.assert_array_equal(np.asarray(tensors[name], np.float32), expected[name])
    np.testing.assert_array_equal(tensors["local"], [0, 1, 2])
    assert tensors["input/draws"][()] == 9
    assert len(list((directory / "step_00000004").glob("state.data-*-of-00002"))) == 2
