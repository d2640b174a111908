"""The limits of a server."""

import dataclasses

from lingvo_moe.config.fields import NonNegativeFloat, Params, PositiveFloat, PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerParams(Params):
    """The limits of a server. A model's own beam and lengths are always allowed.

    Attributes:
        n_best: translations of a sentence, at most.
        beam_size: beam of a search, at most.
        max_output_tokens: tokens of the longest translation that the options allow (413 for more).
        max_batch_tokens: tokens of a batch with padding: number of sentences times the largest. A
            larger sentence is a batch of its own, and its parts are translated in several.
        max_batch_sentences: sentences of a batch.
        max_wait_ms: milliseconds that a sentence waits for others while the model is idle.
        max_queue: sentences that may wait; more are refused (429).
        timeout: seconds for the body of a request to arrive, and again for the answer (504).
        max_bytes: bytes of a request (413 for more).
        max_sentences: sentences of a request (413 for more).
        max_characters: characters of a sentence (413 for more).

    Raises ValueError: a value is out of range, or a request may have more sentences than may wait.
    """

    n_best: PositiveInt = 4
    beam_size: PositiveInt = 8
    max_output_tokens: PositiveInt = 1024
    max_batch_tokens: PositiveInt = 4096
    max_batch_sentences: PositiveInt = 64
    max_wait_ms: NonNegativeFloat = 5.0
    max_queue: PositiveInt = 4096
    timeout: PositiveFloat = 60.0
    max_bytes: PositiveInt = 1 << 20
    max_sentences: PositiveInt = 256
    max_characters: PositiveInt = 10_000

    def __post_init__(self):
        super().__post_init__()
        if self.max_sentences > self.max_queue:
            raise ValueError(
                f"A request may have {self.max_sentences} sentences, but only {self.max_queue} may "
                f"wait in the queue; raise --max_queue, or lower --max_sentences."
            )
