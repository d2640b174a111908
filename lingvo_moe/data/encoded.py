"""Encodes a block of lines as ids, with tables of their lengths."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from lingvo_moe.data.corpora import SentencePair
from lingvo_moe.data.dataset import SIDES
from lingvo_moe.data.language_tags import LanguageTags
from lingvo_moe.data.lengths import count_ratios, tabulate
from lingvo_moe.data.normalization import normalize
from lingvo_moe.data.vocabulary import Vocabulary


def encode_lines(
    lines: Sequence[SentencePair],
    vocabularies: Sequence[Vocabulary],
    layout: LanguageTags,
    tags: tuple[int, int],
    longest: int | None,
) -> dict[str, np.ndarray]:
    """Encodes lines.

    Args:
        lines: the kept lines of a block.
        vocabularies: those of source and target.
        layout, tags: the places of the language tags, and their ids.
        longest: most tokens of a side; longer examples are left out. None for no limit.

    Returns:
        source, target: int32, the ids of all examples, one after the other.
        lengths: int32 [examples, 2].
        table: int64 [cells, 5], the lengths of all lines; see data.lengths.
        ratios: int64 [bins], counts of their ratios.
        fits: bool [lines], whether a line is an example.
    """
    texts = [[getattr(line, side) for line in lines] for side in SIDES]
    encoded = [v.encode(side) for v, side in zip(vocabularies, texts, strict=True)]
    examples = [layout.example(tags, *pieces) for pieces in zip(*encoded, strict=True)]
    lengths = np.array([list(map(len, e)) for e in examples], np.int32).reshape(-1, 2)
    fits = np.ones(len(lines), bool)
    if longest is not None:
        fits = lengths.max(axis=1, initial=0) <= longest
    chosen = np.flatnonzero(fits)
    return {
        **{side: _joined(examples[j][i] for j in chosen) for i, side in enumerate(SIDES)},
        "lengths": lengths[fits],
        "table": tabulate(lengths),
        "ratios": count_ratios(lengths),
        "fits": fits,
    }


def count_changed(vocabulary: Vocabulary, texts: Sequence[str]) -> int:
    """The number of texts that change when encoded and decoded: a model cannot write them.

    Changes by `nfc` do not count: they change only how the same characters are coded.
    """
    restored = vocabulary.decode(vocabulary.encode(texts))
    both = zip(normalize(texts), normalize(restored), strict=True)
    return sum(text != written for text, written in both)


def _joined(rows: Iterable[Sequence[int]]) -> np.ndarray:
    return np.fromiter(itertools.chain.from_iterable(rows), np.int32)
