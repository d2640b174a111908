"""A format of exports of your own: all weights by name in one NumPy file.

lingvo-moe-export --import=examples/own_format.py --format=NumPy --logdir=LOGDIR --output=arrays
"""

import dataclasses

import numpy as np

from lingvo_moe.serving.formats.base import Format
from lingvo_moe.serving.formats.storage import FLOAT32


@dataclasses.dataclass(frozen=True)
class NumPy(Format):
    """`weights.npz`: path of a weight -> its array, such as decoder/softmax.

    Attributes:
        compress: whether to write a smaller file, which takes longer.
    """

    compress: bool = False

    def check(self, model_dir):
        """Checks that the storage is float32."""
        if self.storage != FLOAT32:
            raise ValueError(
                f"NumPy exports have float32 weights, not {self.storage}; drop --dtype."
            )

    def write(self, model_dir, theta, step, directory):
        """Writes the file; `model_dir` has the params and the vocabularies."""
        save = np.savez_compressed if self.compress else np.savez
        save(directory / "weights.npz", step=step, **dict(theta.flatten()))
