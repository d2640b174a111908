"""The rates of a CostModel: from a table of hardware, or fitted to a profile of the machine.

D devices.
"""

import dataclasses

import numpy as np

from lingvo_moe.core.fields import Params, PositiveInt
from lingvo_moe.hardware.chips import Efficiency, Hardware
from lingvo_moe.hardware.fit import fit_rates
from lingvo_moe.hardware.links import Switched, all_reduce_parts
from lingvo_moe.placement.cost import CostModel

# Of single experts and of exchanges of pairs; a whole step reaches Efficiency's own.
EFFICIENCY = Efficiency(matmul=0.5, network=0.5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertShape(Params):
    """One expert and how it is trained.

    Attributes:
        model_dim: of its input and output.
        hidden_dim: between its two matrices.
        dtype: of activations, and of gradients as synchronised.
        state_bytes: a weight: itself and what the optimizer keeps; 12 for Adam in float32.
    """

    model_dim: PositiveInt = 1024
    hidden_dim: PositiveInt = 4096
    dtype: str = "bfloat16"
    state_bytes: PositiveInt = 12

    @property
    def weights(self) -> int:
        """How many; biases are left out."""
        return 2 * self.model_dim * self.hidden_dim


def from_hardware(
    hardware: Hardware, devices: int, expert: ExpertShape, efficiency: Efficiency = EFFICIENCY
) -> CostModel:
    """Rates of `devices` of a kind; messages are large, so the time of hops is left out.

    Args:
        hardware: the kind.
        devices: D.
        expert: what runs on them.
        efficiency: the share that an expert's products and the exchanges reach.

    Raises:
        ValueError: no such dtype.
    """
    if expert.dtype not in hardware.matmul:
        raise ValueError(
            f"No speed is known in {expert.dtype!r}; choose one of {', '.join(hardware.matmul)}."
        )
    wires = hardware.interconnect.two_levels(devices, hardware.bandwidth)
    wires = dataclasses.replace(
        wires, local=wires.local * efficiency.network, remote=wires.remote * efficiency.network
    )
    element = hardware.wire_bytes[expert.dtype]
    # Multiply and add, forwards, and twice as much backwards.
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
    """Measurements at start-up, from which `fit` makes a cost model.

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
        """Rates that fit best, by least squares of relative errors.

        Args:
            token_bytes: see CostModel.
            gradient_bytes: see CostModel.
            state_bytes: see CostModel.

        Returns:
            The model; and for each of the three kinds its largest relative error.

        Raises:
            ValueError: a kind was not measured, or not within a node or between two.
        """
        self._check()
        (per_token, fixed), compute_error = self._fit_compute()
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

    def _check(self):
        for kind in ("compute", "exchange", "all_reduce"):
            if not getattr(self, kind):
                raise ValueError(f"The profile holds no measurement of {kind}.")
        near = {self._near(source, target) for source, target, *_ in self.exchange}
        several = self.devices > self.node
        for what, needed, measured in (
            ("exchange within a node", self.node > 1, True in near),
            ("exchange between nodes", several, False in near),
            ("all_reduce between nodes", several, any(k > 1 for _, k, *_ in self.all_reduce)),
        ):
            if needed and not measured:
                raise ValueError(
                    f"The profile holds no {what}, but {self.devices} devices lie on nodes of "
                    f"{self.node}."
                )

    def _near(self, source, target):
        return source // self.node == target // self.node

    def _fit_compute(self):
        tokens, seconds = np.array(self.compute).T
        return fit_rates(np.stack([tokens, np.ones_like(tokens)], axis=1), seconds)

    def _fit_exchange(self):
        """Within a node and between two."""
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
        """From seconds a byte; 0 where nothing was measured."""
        with np.errstate(divide="ignore"):
            local, remote = 1 / np.array([near, far])
        return Switched(node=self.node, local=local, remote=remote, crowding=crowding)
