"""Examples of several sentences."""

import dataclasses
from typing import Annotated

from lingvo_moe.config.fields import Rule
from lingvo_moe.data.modifiers.base import Body, Modifier, ModifierContext

_Several = Annotated[int, Rule(">= 2", lambda count: count >= 2)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Merging(Modifier):
    """Joins an example with the next ones of its pair's text (Tiedemann and Scherrer 2017), 2 to
    `most` in all, a number that is drawn."""

    most: _Several = 2

    def apply(self, body: Body, context: ModifierContext) -> Body:
        """See Modifier."""
        for k in range(1, 2 + int((self.most - 1) * context.random.random())):
            if (more := context.following(k)) is None:
                break
            body = Body(body.source + more.source, body.target + more.target)
        return body
