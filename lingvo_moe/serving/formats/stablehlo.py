"""Export of a training step to StableHLO; `serving/stablehlo.py` makes the programs."""

import dataclasses
import importlib.util

from lingvo_moe.serving.directory import new_export
from lingvo_moe.serving.formats.base import Format
from lingvo_moe.serving.formats.storage import FLOAT32


@dataclasses.dataclass(frozen=True)
class StableHLO(Format):
    """The training step of a model for CPU and CUDA, and `run.py`, which runs it with JAX.

    The directory holds manifest.json, which describes the programs; train.stablehlo and
    initialize.stablehlo (jax.export), which draws the initial state; and batch.npz, arrays by name.
    """

    client, client_name = "run_stablehlo.py", "run.py"

    def check(self, model_dir, output, pruning):
        """Refuses logdirs."""
        raise ValueError(
            f"StableHLO holds the training step of a model without weights; give "
            f"--model={model_dir.model} without --logdir, or another --format."
        )

    def write(self, model_dir, theta, step, directory):
        """Not called; see `check`."""

    def export_untrained(self, name, params, output, overwrite=False):
        """Writes the training step and the program that draws its initial state."""
        if importlib.util.find_spec("jax") is None:
            raise ValueError(
                "--format=stablehlo needs JAX, which is not installed: pip install jax."
            )
        if self.storage != FLOAT32:
            raise ValueError(
                f"--format=stablehlo stores float32, got {self.storage.name}; drop --dtype, or "
                f"pass --set=activation_dtype=bfloat16 for faster products."
            )
        from lingvo_moe.serving import stablehlo  # needs JAX

        with new_export(output, self.client, self.client_name, overwrite) as directory:
            stablehlo.write(name, params, directory)
