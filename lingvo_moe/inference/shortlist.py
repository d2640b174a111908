"""Shortlists from co-occurrence in training data.  S source pieces, V target pieces."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from lingvo_moe.data.dataset import Dataset, Example
from lingvo_moe.decoding.shortlist import Shortlist
from lingvo_moe.nn.special_tokens import PAD, UNK
from lingvo_moe.system import npz
from lingvo_moe.tasks.model_dir import ModelDir

_BLOCK = 4_000_000  # co-occurrences that are counted together
_CURE = "Make it with lingvo-moe-shortlist, or leave out decoding.shortlist=True."


def make_shortlist(
    model_dir: ModelDir,
    dataset: Dataset,
    candidates: int,
    frequent: int,
    sentences: int,
    report: Callable[[str], None],
) -> Shortlist:
    """Counts which target pieces occur with which source pieces in sentence pairs.

    A source piece has the candidates with the largest Dice coefficients (Smadja et al. 1996),
    2 · both / (source + target), of the numbers of sentence pairs that have both, the source
    piece and the target piece. A target language has its most frequent pieces.

    Args:
        model_dir: the model.
        dataset: what it was trained on.
        candidates: target pieces for each source piece.
        frequent: target pieces for each target language.
        sentences: largest number of sentence pairs to count, divided equally among the language
            pairs; at least one sentence pair of each language pair is counted.
        report: takes a line of progress for each language pair.

    Raises:
        ValueError, OSError: the dataset does not fit the model or has no text for training, or a
            shard is damaged.
    """
    model_dir, dataset = model_dir.for_test_set(dataset)
    sizes = [model_dir.vocabulary(side).size for side in ("source", "target")]
    count = _Counts(*sizes)
    by_tag = {tag: np.zeros(sizes[1], np.int64) for tag in model_dir.tags.values()}
    each = max(1, sentences // len(dataset.pairs))
    for pair in dataset.pairs:
        examples = dataset.first_examples("train", pair.name, each)
        of_language = by_tag[model_dir.tags[pair.target]]
        for example in examples:
            of_language[count.add(example)] += 1
        report(f"{pair.name}: counted")
    known = {tag: counts for tag, counts in by_tag.items() if counts.any()}
    if not known:
        raise ValueError(
            f"{dataset.directory} has no target text in train, and a shortlist counts its pieces. "
            f"Give the data that the model was trained on."
        )
    return Shortlist(
        count.best(candidates),
        np.stack([_most_frequent(counts, frequent) for counts in known.values()]),
        np.array(list(known), np.int32),
    )


def save_shortlist(model_dir: ModelDir, shortlist: Shortlist) -> Path:
    """Writes a shortlist into the logdir."""
    path = model_dir.shortlist_path
    npz.save(
        path,
        by_piece=shortlist.by_piece,
        by_language=shortlist.by_language,
        tags=shortlist.tags,
        vocabularies=_vocabularies(model_dir),
    )
    return path


def load_shortlist(model_dir: ModelDir) -> Shortlist:
    """The shortlist of a logdir.

    Raises:
        ValueError: there is none, or it is damaged or of another model.
    """
    sizes = [model_dir.vocabulary(side).size for side in ("source", "target")]

    def make(arrays):
        made = Shortlist(arrays["by_piece"], arrays["by_language"], arrays["tags"])
        ids = np.concatenate([made.by_piece.ravel(), made.by_language.ravel()])
        if arrays["vocabularies"].tolist() != _vocabularies(model_dir).tolist():
            raise ValueError("it was made for other vocabularies")
        if made.by_piece.shape[:1] != (sizes[0],) or not 0 <= ids.min() <= ids.max() < sizes[1]:
            raise ValueError("it has ids that the vocabularies do not have")
        rows = len(made.by_language)
        if made.tags.shape != (rows,) or made.by_piece[PAD].any() or ids.dtype != np.int32:
            raise ValueError("its arrays do not fit each other")
        return made

    return npz.load(model_dir.shortlist_path, make, "shortlist of this model", _CURE)


def _vocabularies(model_dir: ModelDir) -> np.ndarray:
    """SHA-256 of the source and of the target vocabulary."""
    return np.array([model_dir.hashes[side] for side in ("source", "target")])


class _Counts:
    """In how many sentence pairs pieces occur, and occur together."""

    def __init__(self, sources: int, targets: int):
        self._read, self._written = np.zeros(sources, np.int64), np.zeros(targets, np.int64)
        self._new: list[np.ndarray] = []
        self._waiting = 0
        self._keys, self._both = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, example: Example) -> np.ndarray:
        """Counts a sentence pair; returns its different target pieces."""
        read, written = (np.unique(ids) for ids in (example.source, example.target))
        read, written = read[read > UNK].astype(np.int64), written[written > UNK]
        self._read[read] += 1
        self._written[written] += 1
        self._new.append((read[:, None] * len(self._written) + written).ravel())
        self._waiting += len(self._new[-1])
        if self._waiting > _BLOCK:
            self._merge()
        return written

    def _merge(self):
        keys = np.concatenate([self._keys, *self._new])
        weights = np.ones(len(keys), np.int64)
        weights[: len(self._both)] = self._both
        unique = np.unique(keys, return_inverse=True)
        self._keys, place = unique
        self._both = np.bincount(place, weights, len(self._keys)).astype(np.int64)
        self._new, self._waiting = [], 0

    def best(self, count: int) -> np.ndarray:
        """int32 [S, count]: target pieces with the largest Dice coefficients, then PAD."""
        self._merge()
        source, target = np.divmod(self._keys, len(self._written))
        dice = 2 * self._both / (self._read[source] + self._written[target])
        order = np.lexsort((target, -dice, source))
        source, target = source[order], target[order]
        rank = np.arange(len(source)) - np.searchsorted(source, source)
        table, best = np.zeros((len(self._read), count), np.int32), rank < count
        table[source[best], rank[best]] = target[best]
        return table


def _most_frequent(counts: np.ndarray, count: int) -> np.ndarray:
    """int32 [count]: the ids with the largest counts, then PAD where counts are 0."""
    order = np.argsort(-counts, kind="stable")[:count]
    return np.pad(np.where(counts[order] > 0, order, 0), (0, count - len(order))).astype(np.int32)
