"""The rates of a CostModel: from a table of hardware, or fitted to a profile of the machine.

D devices.
"""

import dataclasses

import numpy as np

from lingvo_moe.config.fields import Params, PositiveInt
from lingvo_moe.flexmoe.cost import CostModel
from lingvo_moe.hardware.chips import Efficiency, Hardware
from lingvo_moe.hardware.links import Switched, all_reduce_parts

# For single experts and exchanges between pairs; Efficiency's defaults are for whole steps.
EFFICIENCY = Efficiency(matmul=0.5, network=0.5)
# Rows. With many tokens the blocks of Dropless have 128, and an expert's last one is half empty.
_PADDING = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertShape(Params):
    """The size of an expert and the params of its training.

    Attributes:
        model_dim: of its input and output.
        hidden_dim: H, between its two matrices.
        dtype: of activations; gradients are summed in float32.
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
    hardware: Hardware,
    devices: int,
    expert: ExpertShape,
    efficiency: Efficiency = EFFICIENCY,
    stride: int = 1,
) -> CostModel:
    """Rates of `devices` of a kind, without the time of hops, because messages are large.

    Args:
        hardware: the kind.
        devices: D.
        expert: the expert that they compute.
        efficiency: the share that an expert's products and the exchanges reach.
        stride: from one of the devices to the next, in devices of the machine.
    """
    full = hardware.interconnect.two_levels(devices * stride, hardware.bandwidth)
    share, node = efficiency.network, max(full.node // stride, 1)
    local, remote = full.local * share, full.remote * share
    wires = dataclasses.replace(full, node=node, local=local, remote=remote)
    element = hardware.wire_bytes[expert.dtype]
    # A multiplication and an addition forwards, and twice as much backwards.
    speed = hardware.matmul[expert.dtype] * efficiency.matmul / (6 * expert.weights)
    return CostModel(
        tokens_per_second=speed,
        bandwidth=wires.bandwidth(devices),
        wires=wires,
        token_bytes=element * expert.model_dim,
        gradient_bytes=4 * expert.weights,  # float32
        state_bytes=expert.state_bytes * expert.weights,
        expert_seconds=_PADDING / speed,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Measurements at start-up of devices with equal links, for `fit`.

    Attributes:
        devices: D.
        compute: (tokens, seconds) of an expert forwards and backwards.
        exchange: (bytes, seconds) of a transfer between two devices.
        all_reduce: (devices, bytes, seconds).
    """

    devices: int
    compute: tuple[tuple[float, float], ...]
    exchange: tuple[tuple[float, float], ...]
    all_reduce: tuple[tuple[int, float, float], ...]

    def fit(
        self, *, token_bytes: float, gradient_bytes: float, state_bytes: float
    ) -> tuple[CostModel, dict[str, float]]:
        """The cost model with the best rates, by least squares of relative errors.

        The arguments are those of CostModel. The second result has the largest relative error of
        each kind of measurement.
        """
        tokens, seconds = np.array(self.compute).T
        amounts = np.stack([tokens, np.ones_like(tokens)], axis=1)
        (per_token, fixed), compute_error = fit_rates(amounts, seconds)
        size, seconds = np.array(self.exchange, float).T
        (per_byte,), exchange_error = fit_rates(size[:, None], seconds)
        n, size, seconds = np.array(self.all_reduce, float).T
        amounts = size[:, None] * np.stack([all_reduce_parts(n, np.ones_like(n))[0], n - 1], axis=1)
        (sent, crowding), sync_error = fit_rates(amounts, seconds)
        model = CostModel(
            tokens_per_second=1 / per_token,
            bandwidth=self._wires(per_byte).bandwidth(self.devices),
            wires=self._wires(sent, crowding),
            token_bytes=token_bytes,
            gradient_bytes=gradient_bytes,
            state_bytes=state_bytes,
            expert_seconds=fixed,
        )
        errors = {"compute": compute_error, "exchange": exchange_error, "all_reduce": sync_error}
        return model, errors

    def _wires(self, per_byte, crowding=0.0):
        """The links of a single node, from seconds a byte."""
        with np.errstate(divide="ignore"):
            speed = float(1 / np.float64(per_byte))
        return Switched(node=self.devices, local=speed, remote=speed, crowding=crowding)


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
