"""spBLEU: BLEU over the pieces of a SentencePiece model (Goyal et al. 2021, arXiv 2106.03193)."""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Sequence

import sentencepiece
from sacrebleu.metrics import BLEU

from lingvo_moe.evaluation.metrics.base import Metric
from lingvo_moe.evaluation.scores import PairOutput


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpBleu(Metric):
    """spBLEU, 0 to 100. With FLORES-200's model it is sacreBLEU's `--tokenize flores200`.

    Attributes:
        model: path of a SentencePiece model.
    """

    column: str = "spBLEU"
    model: str

    def prepare(self) -> None:
        """See Metric."""
        try:
            self._processor.get_piece_size()
        except RuntimeError as error:
            raise ValueError(f"{self.model} is no SentencePiece model.") from error

    def score(self, output: PairOutput) -> float:
        """See Metric."""
        references = [self._cut(output.references)]
        return _bleu().corpus_score(self._cut(output.hypotheses), references).score

    def signature(self) -> str:
        """sacreBLEU's signature, and the first digits of the SHA-256 of the model."""
        bleu = _bleu()
        bleu.corpus_score(["x"], [["x"]])
        digest = hashlib.sha256(self._model_bytes).hexdigest()
        return f"{bleu.get_signature().format()}|spm:{digest[:12]}"

    @functools.cached_property
    def _model_bytes(self) -> bytes:
        return pathlib.Path(self.model).read_bytes()

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self._model_bytes)

    def _cut(self, lines: Sequence[str]) -> list[str]:
        return [" ".join(pieces) for pieces in self._processor.encode_as_pieces(list(lines))]


def _bleu() -> BLEU:
    return BLEU(tokenize="none", force=True)
