"""COMET: a score by a neural network (Rei et al. 2020, arXiv 2009.09025), package unbabel-comet."""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import pathlib
from typing import Any

from lingvo_moe.config.fields import NonNegativeInt, PositiveInt
from lingvo_moe.evaluation.metrics.base import Metric
from lingvo_moe.evaluation.scores import PairOutput

_PACKAGE = "unbabel-comet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comet(Metric):
    """COMET's score of a system times 100.

    Attributes:
        name: the name of a COMET model, which is downloaded when it is first used; or the path of
            a checkpoint.
        batch_size: lines that are scored together.
        gpus: number of GPUs; 0 for the CPU.
    """

    column: str = "COMET"
    name: str = "Unbabel/wmt22-comet-da"
    batch_size: PositiveInt = 8
    gpus: NonNegativeInt = 0

    def prepare(self) -> None:
        """See Metric."""
        if importlib.util.find_spec("comet") is None:
            raise ValueError(f"it needs the package: pip install {_PACKAGE}")
        _ = self._path

    def score(self, output: PairOutput) -> float:
        """See Metric."""
        lines = zip(output.sources, output.hypotheses, output.references, strict=True)
        samples = [{"src": src, "mt": mt, "ref": ref} for src, mt, ref in lines]
        result = self._network.predict(samples, batch_size=self.batch_size, gpus=self.gpus)
        return 100 * float(result.system_score)

    def signature(self) -> str:
        """The model and the version of the package."""
        return f"model:{self.name}|version:{importlib.metadata.version(_PACKAGE)}"

    @functools.cached_property
    def _path(self) -> str:
        download = importlib.import_module("comet").download_model
        return self.name if pathlib.Path(self.name).is_file() else download(self.name)

    @functools.cached_property
    def _network(self) -> Any:
        return importlib.import_module("comet").load_from_checkpoint(self._path)
