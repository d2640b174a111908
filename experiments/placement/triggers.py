"""A trigger to compare with the package's own; FlexMoE's figure 6."""

import dataclasses

from lingvo_moe.placement.scheduler import Trigger


@dataclasses.dataclass(frozen=True)
class IntervalTrigger(Trigger):
    """Plans every `steps` steps, independent of the loads."""

    steps: int = 50

    def should_plan(self, tokens, step, active):
        del tokens, active
        return step % self.steps == 0
