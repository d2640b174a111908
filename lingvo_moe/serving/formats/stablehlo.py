"""Export to StableHLO, for JAX without TensorFlow; `serving/stablehlo.py` makes the programs."""

import dataclasses
import importlib.util
import math
import shlex
import subprocess
import sys
from typing import Annotated, Literal

from lingvo_moe.core.fields import PositiveInt, Rule
from lingvo_moe.serving.directory import new_export
from lingvo_moe.serving.formats.base import Format
from lingvo_moe.serving.formats.storage import FLOAT32
from lingvo_moe.tasks.translator import Translation

_Length = Annotated[int, Rule(">= 3: a tag, one token and the end", lambda length: length >= 3)]


@dataclasses.dataclass(frozen=True)
class StableHLO(Format):
    """Programs for CPU and CUDA, and `run.py`, which runs them with JAX.

    The directory holds manifest.json, which describes the programs; for each program NAME.stablehlo
    (jax.export) and NAME.mlir, the same as text; state.npz and batch.npz, arrays by name, and
    weights.npz if translation uses averages; and the SentencePiece models. An untrained model has
    only its training step and a program that draws the initial state on the device.

    Attributes:
        programs: "train", "translate" or both; () for both, or only "translate" for a model without
            optimizer state, such as an imported one.
        batch_size: number of sentences that are translated together.
        source_length: tokens of the longest sentence, with tag and EOS; longer ones are split. None
            for the length of a Translator's parts.
    """

    programs: tuple[Literal["train", "translate"], ...] = ()
    batch_size: PositiveInt = 16
    source_length: _Length | None = None

    client, client_name = "run_stablehlo.py", "run.py"

    def check(self, model_dir, output, pruning):
        """Checks that JAX is installed, the storage is float32 and nothing is pruned."""
        self._check()
        if pruning:
            raise ValueError(
                "--format=stablehlo holds the whole model; drop --prune, or export a pruned model "
                "with --format=safetensors and that one with --format=stablehlo."
            )

    def _check(self):
        if importlib.util.find_spec("jax") is None:
            raise ValueError(
                "--format=stablehlo needs JAX, which is not installed: pip install "
                "'lingvo_moe[spmd]'."
            )
        if self.storage != FLOAT32:
            raise ValueError(
                f"--format=stablehlo stores float32, got {self.storage.name}; drop --dtype, or "
                f"pass --set=activation_dtype=bfloat16 for faster products."
            )

    def write(self, model_dir, theta, step, directory):
        """Writes the programs, their state, an example batch and the vocabularies."""
        from lingvo_moe.serving import stablehlo  # needs JAX

        shapes = self.programs, self.batch_size, self.source_length
        stablehlo.write_trained(model_dir, theta, step, directory, *shapes)

    def export_untrained(self, name, params, output, overwrite=False):
        """Writes the training step and the program that draws its initial state."""
        self._check()
        if "translate" in self.programs:
            raise ValueError(
                f"programs={self.programs} has 'translate', which needs a trained model; give its "
                f"logdir, or programs=('train',)."
            )
        from lingvo_moe.serving import stablehlo  # needs JAX

        with new_export(output, self.client, self.client_name, overwrite) as directory:
            stablehlo.write_untrained(name, params, directory)

    def hint(self, output, model_dir=None):
        """Translates, or trains if there is only that program."""
        translates = (output / "translate.stablehlo").exists()
        options = f"{self.flags(model_dir)} < sentences" if translates else " --steps=10"
        return f"python {shlex.quote(str(output / 'run.py'))}{options}"

    def open(self, path):
        """Runs `run.py` in a process of its own for each call; its scores are NaN."""

        def translate(sentences, target_language, source_language, warn):
            flags = {"to": target_language, "source_language": source_language}
            command = [sys.executable, str(path / "run.py")]
            done = subprocess.run(
                [*command, *(f"--{flag}={value}" for flag, value in flags.items() if value)],
                input="".join(sentence.replace("\n", " ") + "\n" for sentence in sentences),
                capture_output=True,
                encoding="utf-8",
            )
            if done.returncode:
                raise ValueError(f"{path}/run.py failed: {done.stderr.strip()}")
            if done.stderr.strip():
                warn(done.stderr.strip())
            texts = done.stdout.split("\n")[: len(sentences)]
            return [[Translation(text, math.nan)] for text in texts]

        return translate
