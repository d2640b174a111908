"""Typing errors."""

import dataclasses
import random

from lingvo_moe.core.fields import Share
from lingvo_moe.data.modifiers.base import Body, Modifier, ModifierContext


@dataclasses.dataclass(frozen=True, kw_only=True)
class Typos(Modifier):
    """Omits, doubles, swaps or replaces letters and digits of the source at random.

    The four errors are equally likely. A replacement is a letter or digit of the same text, so it
    usually has the same script. Training on such errors makes translation robust to natural ones
    (Karpukhin et al. 2019, arXiv 1902.01509); models trained without them translate such texts
    badly (Belinkov and Bisk 2018, arXiv 1711.02173).

    Attributes:
        rate: the probability of an error at each letter or digit of a changed text.
    """

    rate: Share = 0.05

    def apply(self, body: Body, context: ModifierContext) -> Body:
        """See Modifier."""
        source, _ = context.vocabularies
        (text,) = source.decode([body.source])
        changed = self.change_text(text, context.random)
        return body if changed == text else body._replace(source=source.encode([changed])[0])

    def change_text(self, text: str, rng: random.Random) -> str:
        """The text with errors; equal to `text` if there are none."""
        letters = [c for c in text if c.isalnum()]
        written, position = [], 0
        while position < len(text):
            here = text[position : position + 1]
            position += 1
            if here.isalnum() and rng.random() < self.rate:
                following = text[position : position + 1]
                error = int(4 * rng.random())
                if error == 3:
                    position += 1
                other = letters[int(len(letters) * rng.random())]
                here = ("", here + here, other, following + here)[error]
            written.append(here)
        return "".join(written)
