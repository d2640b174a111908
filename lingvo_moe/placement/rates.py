"""The rates of a CostModel: from a table of hardware, or fitted to a profile of the machine.

D devices.
"""

import dataclasses

import numpy as np

from lingvo_moe.core.fields import Params, PositiveInt
from lingvo_moe.hardware.chips import Efficiency, Hardware
from lingvo_moe.hardware.links import Switched, all_reduce_parts
from lingvo_moe.placement.cost import CostModel

# For single experts and exchanges between pairs; Efficiency's defaults are for whole steps.
EFFICIENCY = Efficiency(matmul=0.5, network=0.5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertShape(Params):
    """The size of an expert and the params of its training.

    Attributes:
        model_dim: of its input and output.
        hidden_dim: H, between its two matrices.
        dtype: of activations, and of gradients as synchronised.
        state_bytes: bytes of a weight and its optimizer slots; 12 for Adam in float32.
    """

    model_dim: PositiveInt = 1024
    hidden_dim: PositiveInt = 4096
    dtype: str = "bfloat16"
    state_bytes: PositiveInt = 12

    @property
    def weights(self) -> int:
        """The number of weights, without biases."""
        return 2 * self.model_dim * self.hidden_dim


def from_hardware(
    hardware: Hardware, devices: int, expert: ExpertShape, efficiency: Efficiency = EFFICIENCY
) -> CostModel:
    """Rates of `devices` of a kind, without the time of hops, because messages are large.

    Args:
        hardware: the kind.
        devices: D.
        expert: the expert that they compute.
        efficiency: the share that an expert's products and the exchanges reach.
    """
    full = hardware.interconnect.two_levels(devices, hardware.bandwidth)
    share = efficiency.network
    wires = dataclasses.replace(full, local=full.local * share, remote=full.remote * share)
    element = hardware.wire_bytes[expert.dtype]
    # A multiplication and an addition forwards, and twice as much backwards.
    flops = 6 * expert.weights
    return CostModel(
        tokens_per_second=hardware.matmul[expert.dtype] * efficiency.matmul / flops,
        bandwidth=wires.bandwidth(devices),
        wires=wires,
        token_bytes=element * expert.model_dim,
        gradient_bytes=element * expert.weights,
        state_bytes=expert.state_bytes * expert.weights,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Measurements at start-up, for `fit`.

    Attributes:
        devices: D.
        node: devices of a node; neighbours are on one.
        compute: (tokens, seconds) of an expert forwards and backwards.
        exchange: (source, target, bytes, seconds) of a transfer between two devices.
        all_reduce: (devices, nodes, bytes, seconds), the devices spread evenly over the nodes.
    """

    devices: int
    node: int
    compute: tuple[tuple[float, float], ...]
    exchange: tuple[tuple[int, int, float, float], ...]
    all_reduce: tuple[tuple[int, int, float, float], ...]

    def fit(
        self, *, token_bytes: float, gradient_bytes: float, state_bytes: float
    ) -> tuple[CostModel, dict[str, float]]:
        """The cost model with the best rates, by least squares of relative errors.

        Args:
            token_bytes: see CostModel.
            gradient_bytes: see CostModel.
            state_bytes: see CostModel.

        Returns:
            The model; and for each of the three kinds its largest relative error.
        """
        tokens, seconds = np.array(self.compute).T
        amounts = np.stack([tokens, np.ones_like(tokens)], axis=1)
        (per_token, fixed), compute_error = fit_rates(amounts, seconds)
        transfer, exchange_error = self._fit_exchange()
        wires, sync_error = self._fit_all_reduce()
        model = CostModel(
            tokens_per_second=1 / per_token,
            bandwidth=transfer.bandwidth(self.devices),
            wires=wires,
            token_bytes=token_bytes,
            gradient_bytes=gradient_bytes,
            state_bytes=state_bytes,
            expert_seconds=fixed,
        )
        errors = {"compute": compute_error, "exchange": exchange_error, "all_reduce": sync_error}
        return model, errors

    def _near(self, source, target):
        return source // self.node == target // self.node

    def _fit_exchange(self):
        """Seconds a byte within a node and between nodes."""
        near = np.array([self._near(source, target) for source, target, *_ in self.exchange])
        _, _, size, seconds = np.array(self.exchange, float).T
        rates, error = fit_rates(size[:, None] * np.stack([near, ~near], axis=1), seconds)
        return self._wires(*rates), error

    def _fit_all_reduce(self):
        n, k, size, seconds = np.array(self.all_reduce, float).T
        amounts = np.stack([*all_reduce_parts(n / k, k), n - 1], axis=1)
        rates, error = fit_rates(size[:, None] * amounts, seconds)
        return self._wires(*rates), error

    def _wires(self, near, far, crowding=0.0):
        """The links, from seconds a byte; 0 for a kind without measurement."""
        with np.errstate(divide="ignore"):
            local, remote = 1 / np.array([near, far])
        return Switched(node=self.node, local=local, remote=remote, crowding=crowding)


def fit_rates(amounts: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, float]:
    """Rates, not negative, by least squares of relative errors.

    A kind whose amounts depend linearly on those of earlier kinds gets the rate 0.

    Args:
        amounts: [n, kinds], such as messages and bytes of each of n measurements.
        seconds: [n], the measured times.

    Returns:
        Seconds per unit of each kind, [kinds], and the largest relative error.
    """
    relative = amounts / seconds[:, None]
    rates = np.zeros(amounts.shape[1])
    used: list[int] = []
    for kind in range(amounts.shape[1]):
        if np.linalg.matrix_rank(relative[:, [*used, kind]]) > len(used):
            used.append(kind)
    while used:
        rates[:] = 0.0
        rates[used] = np.linalg.lstsq(relative[:, used], np.ones(len(seconds)))[0]
        if rates.min() >= 0:
            break
        used.remove(int(rates.argmin()))
    return rates, float(np.abs(relative @ rates - 1).max())
