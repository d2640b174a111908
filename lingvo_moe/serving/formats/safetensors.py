"""Export of weights in one .safetensors file, which all tools read like a logdir."""

import dataclasses
import shlex

import numpy as np

from lingvo_moe.serving.formats.base import Format
from lingvo_moe.tasks.model_weights import save_weights


@dataclasses.dataclass(frozen=True)
class Safetensors(Format):
    """Weights in one .safetensors file, float32 or bfloat16; params; vocabularies.

    All tools and `load` read it like a logdir, but it cannot be trained.
    """

    can_be_read = True

    def check(self, model_dir):
        """Checks that the storage needs no scales."""
        if self.storage.pack_matrix(np.zeros([1, 1], np.float32), -1).scale is not None:
            raise ValueError(
                f"A safetensors file of weights cannot store the scales of {self.storage.name}; "
                f"pass --dtype=bfloat16, or --format=saved_model."
            )

    def program(self, output):
        """The tool, which reads an export as it reads a logdir."""
        return f"lingvo-moe-translate --logdir={shlex.quote(str(output))}"

    def write(self, model_dir, theta, step, directory):
        """Writes the weights, the params and the vocabularies."""
        packed = theta.map(self.storage.pack, model_dir.task.weights()).flatten()
        weights = {name: one.values for name, one in packed}
        save_weights(directory, weights, step)
        dataclasses.replace(model_dir, path=directory).save()
