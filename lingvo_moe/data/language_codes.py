"""Which codes may mean the same language."""

import contextlib
import functools
import itertools
import re
from collections.abc import Iterable

import langcodes

from lingvo_moe.system.lines import first_of


def are_near(one: str, other: str) -> bool:
    """Whether two different codes may mean one language: `en` and `EN`, `es` and `spa`, or `pt` and
    `pt_BR`, but not `pt_BR` and `pt_PT`."""
    (language, parts), (other_language, others) = _parts(one), _parts(other)
    of_one = parts <= others or others <= parts
    return one != other and language == other_language and of_one


@functools.cache
def _parts(code: str) -> tuple[str, frozenset[str]]:
    """The language, as its shortest code, and the region, script and so on."""
    language, *parts = re.split("[-_@]", code.casefold())
    with contextlib.suppress(ValueError):  # no code of a language
        language = langcodes.standardize_tag(language, macro=True).partition("-")[0]
    return language, frozenset(parts)


def code_warnings(languages: Iterable[str]) -> list[str]:
    """A warning if some of the languages have several codes."""
    pairs = itertools.combinations(sorted(set(languages)), 2)
    if not (near := [f"{one} and {other}" for one, other in pairs if are_near(one, other)]):
        return []
    return [
        f"warning: the data has several codes of what may be one language: {first_of(near)}. Each "
        f"code is a language of its own for the model. If that is not intended, rename the files "
        f"of the corpus and prepare it again."
    ]
