"""Lines that a program has damaged."""

import dataclasses
import unicodedata

from lingvo_moe.data.cleaning.base import CleaningRule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damaged(CleaningRule):
    """A side has U+FFFD (it stands for a lost character), a control character other than tab, or a
    code point that Unicode never assigns."""

    name = "damaged"

    def drops(self, texts, languages):
        return any(_is_damage(c) for text in texts if not text.isprintable() for c in text) or any(
            "\ufffd" in text for text in texts
        )


def _is_damage(character):
    code = ord(character)
    never = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return never or (unicodedata.category(character) == "Cc" and character != "\t")
