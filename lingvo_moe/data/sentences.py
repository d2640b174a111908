"""Splits text that is too long for a model into sentences."""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence

# Punctuation with closing quotes and brackets after it. In scripts with spaces a space must follow,
# so that numbers such as 3.5 are not split.
_END = re.compile(
    r"""(?<![.!?…؟۔।])[.!?…؟۔।]+["')\]»”’]*\s+ | (?<![。！？])[。！？]+["')\]」』”’]*\s*""",
    re.VERBOSE,
)
_NO_SPACE_AFTER = "。！？」』"


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, each with the spaces after it; joined they equal the text."""
    ends = [0, *(match.end() for match in _END.finditer(text)), len(text)]
    parts = (text[start:end] for start, end in itertools.pairwise(ends))
    return [part for part in parts if part]


def pack_sentences(sentences: Sequence[str], lengths: Sequence[int], room: int) -> list[str]:
    """Joins sentences to parts, as few as possible.

    Args:
        sentences: of `split_sentences`.
        lengths: the number of tokens of each.
        room: largest number of tokens of a part; a longer sentence is a part of its own.
    """
    parts, left = [""], room
    for sentence, length in zip(sentences, lengths, strict=True):
        if parts[-1] and length > left:
            parts.append("")
            left = room
        parts[-1] += sentence
        left -= length
    return [part.strip() for part in parts]


def split_into_parts(
    text: str, prefix: str, room: int, count: Callable[[list[str]], Sequence[int]]
) -> list[str]:
    """Parts of a text that is too long, as few as possible, each of whole sentences.

    Args:
        text: to split.
        prefix: text that will be put in front of each part.
        room: largest number of tokens of a prefix and a part; a longer sentence is a part of its
            own.
        count: texts -> the number of tokens of each.
    """
    sentences = split_sentences(text)
    used, *lengths = count([prefix, *sentences])
    return pack_sentences(sentences, lengths, room - used)


def join_sentences(texts: Iterable[str]) -> str:
    """Joins texts with spaces, except after Chinese and Japanese punctuation."""
    joined = ""
    for text in filter(None, map(str.strip, texts)):
        joined += (" " if joined and joined[-1] not in _NO_SPACE_AFTER else "") + text
    return joined
