"""Which source languages a model takes.

Exports contain a copy of this file, so it imports only the standard library.
"""

from collections.abc import Collection, Iterable, Sequence


def source_languages(pairs: Iterable[str], tags: Iterable[str]) -> list[str]:
    """The languages that a source can have, sorted: those of pairs such as "de-en", and those with
    a tag, each of which can be the source of a second step. [] (unknown) without pairs, as in most
    imported models."""
    sources = {pair.rpartition("-")[0] for pair in pairs}
    return sorted(sources.union(tags)) if sources else []


def check_target_language(language: str, known: Collection[str]) -> None:
    """Checks the target language of a request. Raises ValueError: it is not in `known`; the message
    has those that begin alike."""
    if language not in known:
        near = [one for one in known if one[:2].lower() == language[:2].lower()]
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ValueError(
            f"This model does not translate into {language!r:.60}; it knows "
            f"{', '.join(sorted(known))}.{hint}"
        )


def check_source_language(language: str | None, known: Sequence[str]) -> None:
    """Checks the source language of a request, also if the model does not use it; None is not
    given, and an empty `known` allows each. Raises ValueError: it is given and is not in `known`.
    """
    if language is not None and known and language not in known:
        raise ValueError(
            f"source_language: this model does not translate from {language!r:.60}; it knows "
            f"{', '.join(known)}."
        )
