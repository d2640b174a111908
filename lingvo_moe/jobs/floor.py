"""The floor of a pair: the targets of the training sentences most similar to its sources."""

import dataclasses
from collections.abc import Iterator, Sequence

from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.records import Example
from lingvo_moe.evaluation.nearest import nearest

_BLOCK = 10_000  # training sentences in memory


def nearest_targets(dataset: Dataset, split: str, name: str) -> list[str] | None:
    """The target of the most similar training sentence of the same pair for each source.

    Args:
        dataset: prepared data.
        split: "dev" or "test".
        name: the pair.

    Returns:
        A text for each line of the split; None for a pair without training sentences.

    Raises:
        OSError: a shard is missing or damaged.
    """
    pair, vocabulary = dataset.pair(name), dataset.source_vocabulary
    if not pair.examples.get("train"):
        return None
    lines = [example.source_text for example in dataset.examples(split, name)]
    restored = vocabulary.decode(vocabulary.encode(lines))  # normalized like the training text
    found = nearest(_TrainSources(dataset, name), restored)
    copied = {int(i): dataset.example("train", pair, int(i)) for i in set(found)}
    texts = dict(zip(copied, train_texts(dataset, list(copied.values()), "target"), strict=True))
    return [texts[int(i)] for i in found]


def train_texts(dataset: Dataset, examples: Sequence[Example], side: str) -> list[str]:
    """The texts of one side of training examples, of which a dataset has only the ids.

    Args:
        dataset: prepared data.
        examples: training examples of it.
        side: "source" or "target".
    """
    if side == "source":
        return dataset.source_vocabulary.decode([e.source[1:-1].tolist() for e in examples])
    return dataset.target_vocabulary.decode([e.target[:-1].tolist() for e in examples])


@dataclasses.dataclass(frozen=True)
class _TrainSources:
    """The sources of a pair's training examples, in blocks."""

    dataset: Dataset
    name: str

    def __iter__(self) -> Iterator[list[str]]:
        pair = self.dataset.pair(self.name)
        total = pair.examples["train"]
        for start in range(0, total, _BLOCK):
            numbers = range(start, min(start + _BLOCK, total))
            examples = [self.dataset.example("train", pair, i) for i in numbers]
            yield train_texts(self.dataset, examples, "source")
