"""Sources that are copies of their targets."""

import dataclasses

from lingvo_moe.config.fields import Rate
from lingvo_moe.data.modifiers.base import Body, Modifier, ModifierContext


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copying(Modifier):
    """Replaces the source by a copy of the target (Currey et al. 2017).

    A model learns sooner to attend to its source, and to copy names that no dictionary has. With
    `omitted` the copy has gaps, which the model learns to fill.

    Attributes:
        omitted: the probability that a piece of the copy is left out.
    """

    omitted: Rate = 0.0

    def apply(self, body: Body, context: ModifierContext) -> Body:
        """See Modifier."""
        source, target = context.vocabularies
        copy = body.target
        if source != target:
            copy = source.encode(target.decode([copy]))[0]
        draw = context.random.random
        return body._replace(source=[piece for piece in copy if draw() >= self.omitted])
