"""Translations on disk: DIRECTORY/hypotheses/SPLIT/PAIR.{src,hyp,ref}, one sentence per line.

This command gives the scores of the report:
    sacrebleu PAIR.ref -i PAIR.hyp -m bleu chrf --chrf-word-order 2
"""

import pathlib
from typing import Any

from lingvo_moe.core.files import write_whole
from lingvo_moe.core.lines import read_lines
from lingvo_moe.evaluation.scores import PairOutput

_SUFFIXES = {"sources": "src", "hypotheses": "hyp", "references": "ref"}


def hypotheses_path(
    directory: str | pathlib.Path, split: str, pair: str, suffix: str = "hyp"
) -> pathlib.Path:
    """The file of a pair's translations in an evaluation's directory, or of its 'src' or 'ref'."""
    return pathlib.Path(directory, "hypotheses", split, f"{pair}.{suffix}")


def write_hypotheses(directory: str | pathlib.Path, split: str, output: PairOutput) -> None:
    """Writes the three files of a pair."""
    for name, suffix in _SUFFIXES.items():
        path = hypotheses_path(directory, split, output.pair, suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(f"{line}\n" for line in getattr(output, name)))


def read_hypotheses(
    directory: str | pathlib.Path, split: str, pair: str, *, train_examples: int = 0
) -> PairOutput:
    """Reads what `write_hypotheses` wrote.

    Args:
        directory: of the evaluation; `hypotheses/` is in it.
        split: such as 'test'.
        pair: such as 'sw-en'.
        train_examples: of the result; it is not in the files.

    Raises:
        FileNotFoundError: if one of the three files is missing.
        ValueError: if they differ in length or are no UTF-8 text.
    """
    lines: dict[str, Any] = {
        name: list(read_lines(hypotheses_path(directory, split, pair, suffix)))
        for name, suffix in _SUFFIXES.items()
    }
    return PairOutput(pair=pair, train_examples=train_examples, **lines)
