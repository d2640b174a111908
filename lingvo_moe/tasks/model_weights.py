"""The weights of a model in one .safetensors file, instead of checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lingvo_moe.system import safetensors
from lingvo_moe.training.checkpoint import Checkpoint

WEIGHTS = "model.safetensors"


def save_weights(
    path: Path, weights: Mapping[str, np.ndarray | safetensors.InParts], step: int
) -> None:
    """Writes WEIGHTS in the directory of a model.json: weights by path such as
    "decoder/norm/scale", and the step of the checkpoint."""
    safetensors.save(path / WEIGHTS, weights, {"step": str(step)})


def read_weights(file: Path, step: int | None) -> Checkpoint:
    """The weights that `save_weights` wrote, as a checkpoint; floats become float32. Raises
    ValueError, OSError: the file is missing or damaged, another tool made it, or it is not of this
    step."""
    weights, metadata = safetensors.load(file)
    if not metadata.get("step", "").isdecimal():
        raise ValueError(f"{file} has no step in its metadata; it was made by another tool.")
    found = int(metadata["step"])
    if step not in (None, found):
        raise ValueError(f"{file} holds step {found}, not {step}; leave --step out.")
    tensors: dict[str, Any] = {"step": np.array(found, np.int64)}
    tensors |= {
        f"theta/{name}": array if array.dtype.kind == "i" else array.astype(np.float32, copy=False)
        for name, array in weights.items()
    }
    return Checkpoint(file.parent, found, tensors)
