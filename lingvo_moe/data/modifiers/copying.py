"""Sources that are copies of their targets."""

import dataclasses

from lingvo_moe.data.modifiers.base import Body, Modifier, ModifierContext


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copying(Modifier):
    """Replaces the source by a copy of the target (Currey et al. 2017).

    A model learns sooner to attend to its source, and to copy names that no dictionary has.
    """

    def apply(self, body: Body, context: ModifierContext) -> Body:
        """See Modifier."""
        source, target = context.vocabularies
        copy = body.target
        if source != target:
            copy = source.encode(target.decode([copy]))[0]
        return body._replace(source=copy)
