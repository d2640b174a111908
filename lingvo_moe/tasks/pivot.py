"""Translation in two steps, through a pivot language."""

from collections.abc import Callable, Mapping, Sequence

from lingvo_moe.data.dataset import Dataset
from lingvo_moe.tasks.translator import Translation

# (sentences, target language, source language, warn=…) -> n best translations of each; such as a
# Translator.
Translate = Callable[..., list[list[Translation]]]


def through(translator: Translate, pivot: str | None) -> Translate:
    """Translates into a pivot language first, and from it into the target; see `directions`."""

    def translate(sentences, to, source_language, **options):
        *first, (source, target) = directions(source_language, to, pivot)
        for language, middle in first:
            found = translator(sentences, middle, language, **options)
            sentences = [best[0].text for best in found]
        return translator(sentences, target, source, **options)

    return translate


def directions(source: str, target: str, pivot: str | None) -> list[tuple[str, str]]:
    """The steps that translate a pair, each as (source, target).

    There are two steps through a pivot. Without a pivot, or if the pivot is the source or the
    target, there is one.
    """
    if pivot is None or pivot in (source, target):
        return [(source, target)]
    return [(source, pivot), (pivot, target)]


def untrained_steps(
    dataset: Dataset, pivots: Mapping[str, str | None], seen: Sequence[str]
) -> list[str]:
    """The pairs that a pivot needs and that the model was not trained on.

    Args:
        dataset: prepared data.
        pivots: pair -> the pivot that it is translated through; None for none.
        seen: the pairs that it was trained on; () if they are not known.
    """
    steps: dict[str, None] = {}
    for name, pivot in pivots.items():
        pair = dataset.pair(name)
        if len(both := directions(pair.source, pair.target, pivot)) > 1:
            steps |= dict.fromkeys(f"{source}-{target}" for source, target in both)
    return [step for step in steps if seen and step not in seen]
