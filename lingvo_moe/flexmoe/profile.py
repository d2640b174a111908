"""Measures the rates of the placement's cost model on JAX's devices, before training.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, section 3 (cost model): TPS, Bw and BPS are
profiled before training. Every round makes each measurement once, so that a slow phase of the
machine affects all of them.

D devices, M model, H hidden.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lingvo_moe.flexmoe.rates import Profile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """The devices and the expert to measure.

    Attributes:
        model_dim: M of an expert.
        hidden_dim: H of an expert.
        dtype: of activations and gradients.
        devices: D devices of this process, with equal links; by default all.

    Raises:
        ValueError: fewer than two devices.
    """

    model_dim: int
    hidden_dim: int
    dtype: str = "float32"
    devices: tuple[jax.Device, ...] = dataclasses.field(
        default_factory=lambda: tuple(jax.local_devices())
    )

    def __post_init__(self):
        if len(self.devices) < 2:
            raise ValueError("Only two devices or more can be measured; give their kind.")

    @property
    def token_bytes(self) -> int:
        """Of one token's vector."""
        return self.model_dim * jnp.dtype(self.dtype).itemsize

    @property
    def gradient_bytes(self) -> int:
        """Of one expert's gradients."""
        return 2 * self.hidden_dim * self.token_bytes

    def expert_step(self, device: int, tokens: int) -> Callable[[], Any]:
        """The forward and backward pass of an expert with this number of rows on one device."""
        n, m, h = tokens, self.model_dim, self.hidden_dim
        shapes = ((n, m), (m, h), (h, m), (n, m))
        arrays = [self._put(np.full(shape, 0.01), device) for shape in shapes]
        return lambda: _forwards_and_backwards(*arrays)

    def transfer(self, source: int, target: int, size: float) -> Callable[[], Any]:
        """A transfer of `size` bytes, at least one element, between two devices."""
        array = self._put(np.zeros(self._elements(size)), source)
        return lambda: jax.device_put(array, self.devices[target])

    def all_reduce(self, group: Sequence[int], size: float) -> Callable[[], Any]:
        """An AllReduce of `size` bytes of each device of a group."""
        numbers = np.arange(len(group), dtype=np.float32)[:, None]
        values = np.repeat(numbers, self._elements(size), axis=1).astype(self.dtype)
        mesh = Mesh(np.array([self.devices[i] for i in group]), ("device",))
        spec = PartitionSpec("device")
        add = jax.jit(
            jax.shard_map(
                lambda x: jax.lax.psum(x, "device"),
                mesh=mesh,
                in_specs=spec,
                out_specs=spec,
                check_vma=False,
            )
        )
        held = jax.device_put(values, NamedSharding(mesh, spec))
        return lambda: add(held)

    def _put(self, values, device):
        return jax.device_put(values.astype(self.dtype), self.devices[device])

    def _elements(self, size):
        return max(round(size / jnp.dtype(self.dtype).itemsize), 1)


class Probes(NamedTuple):
    """The calls that are timed for a profile.

    Attributes:
        machine: what is measured.
        kinds: field of Profile -> beginning of a row -> the call whose seconds complete the row.
    """

    machine: Machine
    kinds: dict[str, dict[tuple, Callable[[], Any]]]

    @property
    def calls(self) -> list[Callable[[], Any]]:
        """All of them, for `timed`."""
        return [call for kind in self.kinds.values() for call in kind.values()]

    def profile(self, seconds: Iterable[float]) -> Profile:
        """The Profile for the seconds of each of `calls`."""
        left = iter(seconds)
        rows = {
            name: tuple((*what, float(next(left))) for what in kind)
            for name, kind in self.kinds.items()
        }
        return Profile(devices=len(self.machine.devices), **rows)


def probes(machine: Machine, tokens: Sequence[int], sizes: Sequence[float]) -> Probes:
    """The calls that `measure` times; same arguments."""
    devices, sizes = len(machine.devices), [size * machine.gradient_bytes for size in sizes]
    groups = sorted({devices, *(2**i for i in range(1, devices.bit_length()))})
    return Probes(
        machine,
        {
            "compute": {(n,): machine.expert_step(0, n) for n in tokens},
            "exchange": {(size,): machine.transfer(0, 1, size) for size in sizes},
            "all_reduce": {
                (n, size): machine.all_reduce(range(n), size) for n in groups for size in sizes
            },
        },
    )


def measure(
    machine: Machine,
    tokens: Sequence[int] = (128, 512, 2048),
    sizes: Sequence[float] = (0.5, 2.0),
    rounds: int = 11,
) -> Profile:
    """Measures the times of experts, transfers and AllReduces for `Profile.fit`.

    Calls run alone on the machine, except AllReduces. It takes seconds to about a minute, depending
    on the size of the expert.

    Args:
        machine: what to measure.
        tokens: numbers of tokens of an expert.
        sizes: of AllReduces and transfers, as multiples of an expert's gradients.
        rounds: number of measurements of each call; the median is used.
    """
    wanted = probes(machine, tokens, sizes)
    return wanted.profile(np.median(timed(wanted.calls, rounds), axis=0))


def timed(
    calls: Sequence[Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> np.ndarray:
    """[rounds, calls], seconds until the results of each call are ready, without compilation.

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


@jax.jit
def _forwards_and_backwards(inputs, wi, wo, upstream):
    """The outputs of a feed-forward network, and the gradients of inputs and weights."""
    outputs, pull = jax.vjp(lambda x, a, b: jax.nn.relu(x @ a) @ b, inputs, wi, wo)
    return outputs, pull(upstream)
