"""Sentences of a text that is longer than a model reads at once."""

import itertools
import re
from collections.abc import Iterable

# Marks with the quotes and brackets that close after them. Marks of scripts that write spaces need
# one after them, so that numbers such as 3.5 stay whole.
_END = re.compile(
    r"""(?<![.!?…؟۔।])[.!?…؟۔।]+["')\]»”’]*\s+ | (?<![。！？])[。！？]+["')\]」』”’]*\s*""",
    re.VERBOSE,
)
_NO_SPACE_AFTER = "。！？」』"


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, each with the spaces after it: joined, they are the text."""
    ends = [0, *(match.end() for match in _END.finditer(text)), len(text)]
    parts = (text[start:end] for start, end in itertools.pairwise(ends))
    return [part for part in parts if part]


def join_sentences(texts: Iterable[str]) -> str:
    """Texts as one: with spaces between them, but after marks of Chinese and Japanese."""
    joined = ""
    for text in filter(None, map(str.strip, texts)):
        joined += (" " if joined and joined[-1] not in _NO_SPACE_AFTER else "") + text
    return joined
