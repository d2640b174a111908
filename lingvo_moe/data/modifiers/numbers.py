"""Random numbers on both sides."""

import collections
import dataclasses
import re
import unicodedata

from lingvo_moe.data.modifiers.base import Body, Modifier, ModifierContext
from lingvo_moe.nn.special_tokens import UNK


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbers(Modifier):
    """Changes numbers of both sides, so that a model learns to copy any number digit by digit.

    Numbers that source and target have equally often become random ones of as many digits; each
    side keeps the digits of its script. If there is no such number, a random one of 1 to 6 ASCII
    digits is added to both sides: in front, behind, or behind in brackets.
    """

    def apply(self, body: Body, context: ModifierContext) -> Body:
        """See Modifier."""
        if UNK in (*body.source, *body.target):  # its text is lost
            return body
        texts = [v.decode([ids])[0] for v, ids in zip(context.vocabularies, body, strict=True)]
        source, target = (collections.Counter(map(_value, re.findall(r"\d+", t))) for t in texts)
        if common := [value for value in source if source[value] == target[value]]:
            new = {value: _drawn(len(value), context.random) for value in common}
            texts = [re.sub(r"\d+", lambda found: _changed(found[0], new), text) for text in texts]
        else:
            number = _drawn(context.random.randint(1, 6), context.random)
            form = context.random.choice(("{0} {1}", "{1} {0}", "{1} ({0})"))
            texts = [form.format(number, text) for text in texts]
        return Body(*(v.encode([t])[0] for v, t in zip(context.vocabularies, texts, strict=True)))


def _value(digits):
    """The digits of any script as 0 to 9."""
    return "".join(str(unicodedata.decimal(digit)) for digit in digits)


def _drawn(length, random):
    """A random number of so many digits; it may begin with 0, as parts of 1,005 and 10:05 do."""
    return f"{random.randrange(10**length):0{length}}"


def _changed(digits, new):
    """The digits of the new number, in the same script; the same digits if there is none."""
    zero = ord(digits[0]) - unicodedata.decimal(digits[0])
    return "".join(chr(zero + int(d)) for d in new.get(_value(digits), _value(digits)))
