"""Measures the available devices: matrix products, memory, and α and β of each collective.

All D devices work at the same time, as in training. `placement/profile.py` measures one expert by
the same functions, `timed` and `on_each`.
"""

import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lingvo_moe.hardware.chips import MEASURED, Hardware
from lingvo_moe.hardware.fit import fit_rates
from lingvo_moe.hardware.links import Line, Measured, hops
from lingvo_moe.sbp.boxing import received

AXIS = "device"
_SIZES = tuple(2**i for i in (12, 16, 20, 22))  # bytes of a collective, as of hlo.Collective
_REPEATS = 32  # in one program
_TRIES = 5
_LEAST = 1e-15  # seconds a byte, if times do not depend on bytes


def calibrate(progress: Callable[[str], None] = lambda line: None) -> Hardware:
    """Measures JAX's devices, for --hardware=FILE.

    Each time is the best of a few, to reduce the effect of other programs. All devices, and all
    links between them, are assumed to be equal, which is wrong for several hosts.

    Args:
        progress: takes lines of progress.
    """
    devices = jax.devices()
    progress(f"Measuring {len(devices)} x {devices[0].device_kind}.")
    matmul = {dtype: _matmul_rate(devices, dtype) for dtype in ("float32", "bfloat16")}
    bandwidth = _bandwidth(devices)
    lines = []
    for kind in _COLLECTIVES if len(devices) > 1 else ():
        progress(f"Measuring {kind}.")
        lines.append(fit(kind, _samples(kind, devices)))
    return Hardware(
        description=f"{devices[0].device_kind}, measured with {len(devices)} of them",
        matmul=matmul,
        memory=_memory(devices),
        bandwidth=bandwidth,
        interconnect=Measured(lines=tuple(lines)),
        efficiency=MEASURED,
    )


def fit(kind: str, samples: Sequence[tuple[int, int, float]]) -> Line:
    """α and β, not negative, by least squares of the relative errors of measured times.

    Args:
        kind: of collective.
        samples: (devices, bytes as of `hlo.Collective`, seconds).
    """
    amounts = [[hops(kind, d), float(received(kind, n, d))] for d, n, _ in samples]
    (alpha, per_byte), _ = fit_rates(np.array(amounts), np.array([s for _, _, s in samples]))
    return Line(kind, float(alpha), float(1 / max(per_byte, _LEAST)))


def _all_reduce(x):
    return jax.lax.psum(x, AXIS) / jax.lax.axis_size(AXIS)


def _all_gather(x):
    return jax.lax.all_gather(x, AXIS, tiled=True)[: x.shape[0]]


def _reduce_scatter(x):
    piece = jax.lax.psum_scatter(x, AXIS, tiled=True)
    return jnp.tile(piece, jax.lax.axis_size(AXIS)) / jax.lax.axis_size(AXIS)


def _all_to_all(x):
    return jax.lax.all_to_all(x, AXIS, 0, 0, tiled=True)


_COLLECTIVES = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
}


def _samples(kind, devices) -> list[tuple[int, int, float]]:
    counts = [n for n in (2, 4, 8, 16, 32) if n <= len(devices)] or [len(devices)]
    return [
        (count, size, _collective_seconds(kind, devices[:count], size))
        for count in counts
        for size in _SIZES
    ]


def _collective_seconds(kind, devices, size) -> float:
    """Seconds of one collective in a chain, without the time of calling the program."""
    # Elements on each device: its piece of the result of an all-gather, else all of `size`.
    own = size // 4 // (len(devices) if kind == "all-gather" else 1)

    def chain(x, times):
        return jax.lax.fori_loop(0, times, lambda _, x: _COLLECTIVES[kind](x), x)

    program = on_each(devices, chain, np.ones(own * len(devices), np.float32))
    none, all_ = _best(program, 0), _best(program, _REPEATS)
    return (all_ - none if all_ > none else all_) / _REPEATS


def _matmul_rate(devices, dtype) -> float:
    """FLOP/s of a device while all devices multiply."""
    n = 512 if devices[0].platform == "cpu" else 8192
    x = _ones(devices, (n, n), dtype)
    program = jax.jit(lambda x: jnp.einsum("dij,djk->dik", x, x) / n)
    return 2 * n**3 / _best(program, x)


def _bandwidth(devices) -> float:
    """Bytes/s that a device reads and writes while all devices do."""
    elements = 2**22 if devices[0].platform == "cpu" else 2**28
    x = _ones(devices, (elements,), "float32")
    return 2 * 4 * elements / _best(jax.jit(lambda x: x + 1.0), x)


def _ones(devices, shape, dtype):
    make = jax.jit(
        lambda: jnp.ones((len(devices), *shape), dtype), out_shardings=_one_piece_each(devices)
    )
    return make()


def _one_piece_each(devices) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS))


def on_each(
    devices: Sequence[jax.Device], function: Callable[..., Any], array: np.ndarray
) -> Callable[..., Any]:
    """A function of numbers that runs a collective program on the devices.

    Args:
        devices: n devices, along the mesh axis AXIS.
        function: takes a device's piece of the array, and the numbers.
        array: [n·k, ...]; each device gets k rows.
    """
    cut = _one_piece_each(devices)

    def program(x, numbers):
        return function(x, *numbers)

    specs = (cut.spec, PartitionSpec())
    mapped = jax.shard_map(
        program, mesh=cut.mesh, in_specs=specs, out_specs=cut.spec, check_vma=False
    )
    call = functools.partial(jax.jit(mapped), jax.device_put(array, cut))
    return lambda *numbers: call(numbers)


def timed(
    calls: Sequence[Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> np.ndarray:
    """[rounds, calls], seconds until the results of each call are ready, without compilation.

    Every round makes each call once, so that a slow phase of the machine affects all calls.

    Args:
        calls: functions that return JAX arrays.
        rounds: how often each is timed.
        clock: returns seconds; time.process_time excludes the work of other programs.
    """
    for call in calls:
        jax.block_until_ready(call())
    seconds = np.empty((rounds, len(calls)))
    for i in range(rounds):
        for j, call in enumerate(calls):
            start = clock()
            jax.block_until_ready(call())
            seconds[i, j] = clock() - start
    return seconds


def _best(program, *arguments) -> float:
    """Seconds of the fastest of a few calls."""
    return float(timed([lambda: program(*arguments)], _TRIES).min())


def _memory(devices) -> float:
    """Bytes of a device's memory; for virtual devices their share of the machine's memory."""
    stats = devices[0].memory_stats() if devices[0].platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return float(stats["bytes_limit"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / len(devices)
