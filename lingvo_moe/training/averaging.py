"""The moving average of the weights (Polyak & Juditsky 1992), which optimizer.ema_decay keeps."""

from collections.abc import Mapping
from typing import Any

from lingvo_moe.training.optimizer import EMA

_THETA, _SLOTS = "theta/", "slots/"


def averaged(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tensors of a checkpoint by name, with the averages of the weights that have one as these
    weights: what decoding, evaluation and exports use."""
    averages = {
        f"{_THETA}{name.removeprefix(_SLOTS).removesuffix(f'/{EMA}')}": tensor
        for name, tensor in tensors.items()
        if name.startswith(_SLOTS) and name.endswith(f"/{EMA}")
    }
    return {**tensors, **averages}
