"""What all stages of a preparation share: its job, its directory of pieces, its vocabularies."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lingvo_moe.data.corpora import CorpusPair
from lingvo_moe.data.dataset import SIDES
from lingvo_moe.data.normalization import normalize
from lingvo_moe.data.prepare_params import PrepareParams
from lingvo_moe.data.vocabulary import SPACE, Vocabulary

STAGES = ("text", "held_out", "checks", "keys", "repeats", "models", "ids", "shards")  # directories


class Piece(NamedTuple):
    """A part of a stage.

    Attributes:
        path: the file that appears when it is finished.
        make: makes it; takes a function to call with numbers of finished lines.
        lines: number of lines, for progress; 0 if `make` counts them.
    """

    path: Path
    make: Callable[[Callable[[int], None]], None]
    lines: int = 0


@dataclasses.dataclass(frozen=True)
class Work:
    """One preparation of a dataset.

    Attributes:
        directory: the directory of the pieces.
        pairs: the pairs of the dataset, in order.
        params: the params.
        memory: bytes for sorting in each process.
        digests: file of the corpus -> its `digest_of` before any work.
    """

    directory: Path
    pairs: tuple[CorpusPair, ...]
    params: PrepareParams
    memory: int
    digests: Mapping[Path, str] = dataclasses.field(default_factory=dict)

    @property
    def has_pieces(self) -> bool:
        """Whether an earlier run has made pieces."""
        return any((self.directory / name).exists() for name in STAGES)

    @property
    def tagged(self) -> list[str]:
        """The languages with a tag: those of targets, or of both sides."""
        sources = {pair.source for pair in self.pairs} if self.params.tags_on_both_sides else set()
        return sorted({pair.target for pair in self.pairs} | sources)

    @functools.cached_property
    def _normalizers(self) -> list[Callable[[Sequence[str]], list[str]]]:
        """What both sides' vocabularies, which need not exist yet, make of texts."""
        params = self.params
        if params.extend:
            paths = (Path(params.extend) / f"{side}.model" for side in SIDES)
            return [Vocabulary.load(path).normalize for path in paths]
        target = params.target_normalization
        source = target if params.joint_vocab else params.source_normalization
        return [functools.partial(normalize, rules=name) for name in (source, target)]

    def key(self, text: str, *sides: int) -> str:
        """The key of a text; texts with equal keys count as the same.

        Args:
            text: of a corpus.
            *sides: the sides, 0 for source and 1 for target, whose vocabularies read the text.
        """
        for side in sides:
            (text,) = self._normalizers[side]([text])
        return self.params.duplicates.key(" ".join(text.replace(SPACE, " ").split()))

    def model_path(self, side: str) -> Path:
        """The file of a vocabulary; there is none for targets if both sides share one."""
        return self.directory / "models" / f"{side}.model"

    @functools.cached_property
    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """The trained vocabularies, of sources and of targets."""
        source, target = map(self.model_path, SIDES)
        of_target = target if target.exists() else source
        return Vocabulary.load(source), Vocabulary.load(of_target)


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
