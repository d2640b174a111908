"""Language identification among the languages of a dataset.  L languages, N n-gram buckets.

A multinomial naive Bayes classifier over character n-grams (Cavnar and Trenkle 1994, "N-Gram-Based
Text Categorization"; Lui and Baldwin 2012, langid.py, section 3), trained on the text of the
dataset. So it knows only the languages of the dataset, also invented ones.
"""

from collections.abc import Mapping, Sequence

import numpy as np

_LENGTHS = (1, 2, 3, 4)  # characters of an n-gram; a text gets a space at both ends
_BUCKETS = 1 << 16  # N, of hashed n-grams
_SMOOTHING = 0.03  # added to each count


class LanguageIdentifier:
    """Finds the language of a text.

    Attributes:
        languages: the languages that it knows, sorted.
    """

    def __init__(self, texts: Mapping[str, Sequence[str]]):
        """Trains it.

        Args:
            texts: language -> sentences in it, of two languages or more.
        """
        self.languages = sorted(texts)
        counts = np.stack([_counts(texts[language]) for language in self.languages])
        smoothed = counts + _SMOOTHING
        self._log_probs = np.log(smoothed / smoothed.sum(axis=1, keepdims=True))  # [L, N]

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """The most probable language of each text; of equal ones the first."""
        scores = (self._log_probs[:, _buckets(text)].sum(axis=1) for text in texts)
        return [self.languages[int(np.argmax(score))] for score in scores]

    def off_target(self, texts: Sequence[str], language: str) -> float:
        """The share of texts that are not in a language, one of those that it knows."""
        return float(np.mean([found != language for found in self(texts)]))


def _counts(texts: Sequence[str]) -> np.ndarray:
    """The count of each bucket: float64 [N]."""
    found = np.zeros(_BUCKETS)
    for text in texts:
        found += np.bincount(_buckets(text), minlength=_BUCKETS)
    return found


def _buckets(text: str) -> np.ndarray:
    """The buckets of the n-grams of a text, int64 [n-grams]."""
    codes = np.frombuffer(f" {text} ".encode("utf-32-le", "replace"), np.uint32).astype(np.uint64)
    found = []
    for length in _LENGTHS:
        count = len(codes) - length + 1
        hashed = np.full(max(count, 0), length, np.uint64)
        for i in range(length):
            hashed = hashed * np.uint64(0x100000001B3) ^ codes[i : i + count]  # FNV's prime
        found.append(hashed * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(48))
    return np.concatenate(found).astype(np.int64)
