"""The params of the training loop."""

import dataclasses

from lingvo_moe.config.fields import FromData, NonNegativeInt, Params, PositiveFloat, PositiveInt
from lingvo_moe.training.criteria import Criterion, DevLoss


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainParams(Params):
    """The length of training, and its evaluations and checkpoints.

    Attributes:
        max_steps: the last step.
        log_every: steps between progress lines and TensorBoard points.
        eval_every: steps between evaluations on dev; each is a checkpoint too.
        checkpoint_every: steps between checkpoints for resuming.
        keep_checkpoints: number of newest checkpoints to keep besides the best.
        keep_every_steps: checkpoints of multiples of this step are kept forever; None for none.
        stall_seconds: a step, its input included, or a save that takes longer shows the stack
            traces of all threads; None for no traces.
        best_by: which evaluation is the best; its checkpoint is used after training.
        patience: stop after this number of evaluations in a row without a new best one; None for
            never.
        dev_bleu_sentences: dev sentences, spread over the pairs and over each one's dev, to
            translate for BLEU and chrF++ at each evaluation; 0 for none.
        source_use_sentences: dev sentences, spread over the pairs, whose loss is measured a second
            time with sources of other sentences at each evaluation; 0 for none.
        clip_norm: bound > 0 on the gradient's global norm; None for none.
        skip_limit: training ends if the last steps, this number or more, were all not finite, and
            so were skipped. This is checked at each line of the log, evaluation and checkpoint.
        micro_batches: number of parts of a batch's rows; the gradients of the parts are summed.
        seed: of initial weights, dropout, random routing and the sampling of data; 0 to 2^31 - 1.
    """

    max_steps: PositiveInt | FromData = 100_000
    log_every: PositiveInt = 50
    eval_every: PositiveInt | FromData = 1000
    checkpoint_every: PositiveInt | FromData = 1000
    keep_checkpoints: PositiveInt = 3
    keep_every_steps: PositiveInt | None = None
    stall_seconds: PositiveFloat | None = 600.0
    best_by: Criterion = DevLoss()
    patience: PositiveInt | None = None
    dev_bleu_sentences: NonNegativeInt = 0
    source_use_sentences: NonNegativeInt = 1000
    clip_norm: PositiveFloat | None = None
    skip_limit: PositiveInt = 10
    micro_batches: PositiveInt = 1
    seed: NonNegativeInt = 1

    def __post_init__(self):
        super().__post_init__()
        if self.best_by.needs_translations and not self.dev_bleu_sentences:
            raise ValueError(
                f"best_by={self.best_by} needs translations of dev, and dev_bleu_sentences is 0. "
                f"Set dev_bleu_sentences=300, or best_by=DevLoss()."
            )
