"""Translation in two steps, through a pivot language."""

from collections.abc import Callable

from lingvo_moe.inference.translator import Translation

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
