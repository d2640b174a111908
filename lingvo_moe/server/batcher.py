"""Sentences of many requests become batches, which one thread translates."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from lingvo_moe.core.fields import NonNegativeFloat, Params, PositiveInt

_START_PACE = 0.05  # seconds a sentence, until batches have been timed
_SMOOTHING = 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchParams(Params):
    """How sentences are joined.

    Attributes:
        max_tokens: of a batch, padding included: its sentences times the longest. A sentence that
            is longer goes alone.
        max_sentences: of a batch.
        max_wait: seconds that a sentence waits for others while the model has nothing else to do.
        max_queue: sentences that may wait; requests beyond that are refused.
    """

    max_tokens: PositiveInt = 4096
    max_sentences: PositiveInt = 64
    max_wait: NonNegativeFloat = 0.005
    max_queue: PositiveInt = 4096


class Busy(Exception):
    """As many sentences wait as may; `seconds` is when there may be room."""

    def __init__(self, waiting: int, seconds: int):
        super().__init__(f"{waiting} sentences are waiting; try again in {seconds} s.")
        self.seconds = seconds


class _Request:
    """The answers to one request, as they come in; `missing` counts those to come."""

    def __init__(self, size: int):
        self.done: asyncio.Future = asyncio.get_running_loop().create_future()
        self._answers: list[Any] = [None] * size
        self.missing = size

    def answer(self, place: int, answer: Any) -> None:
        """Takes the answer to one sentence; nobody may be waiting for it any more."""
        self._answers[place] = answer
        self.missing -= 1
        if not self.missing and not self.done.done():
            self.done.set_result(self._answers)

    def fail(self, error: Exception) -> None:
        """Ends the request by an error."""
        if not self.done.done():
            self.done.set_exception(error)


@dataclasses.dataclass(frozen=True, eq=False)
class _Waiting:
    """A sentence in the queue."""

    sentence: Any
    tokens: int
    settings: Hashable
    since: float
    request: _Request
    place: int


class Batcher:
    """A queue of sentences in front of one model.

    The sentence that has waited longest is in the next batch, with those of its settings that are
    nearest to it in length, whoever sent them. A batch starts when it is full, or when its oldest
    sentence has waited long enough. All but the translating happens in the event loop's thread.
    """

    def __init__(
        self,
        translate: Callable[[list[Any], Any], Sequence[Any]],
        params: BatchParams,
        observe: Callable[[int, int, float], None] = lambda sentences, tokens, seconds: None,
    ):
        """Makes it; `run` sets it to work.

        Args:
            translate: takes sentences and their settings and gives an answer for each; called in a
                thread of its own.
            params: how to join sentences.
            observe: told of each batch: its sentences, its tokens without padding, its seconds.
        """
        self._translate, self._params, self._observe = translate, params, observe
        self._queue: list[_Waiting] = []
        self._arrival = asyncio.Event()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "translate")
        self._pace = _START_PACE

    @property
    def waiting(self) -> int:
        """Sentences in the queue, without those being translated."""
        return len(self._queue)

    async def submit(
        self, sentences: Sequence[Any], tokens: Sequence[int], settings: Hashable
    ) -> list[Any]:
        """The answers to one request. If it is cancelled, its sentences leave the queue.

        Args:
            sentences: what to translate.
            tokens: the length of each.
            settings: such as languages; sentences of other settings go in other batches.

        Raises:
            Busy: the queue has no room for them all.
            Exception: what `translate` raised for a batch with one of them.
        """
        if not sentences:
            return []
        if self.waiting + len(sentences) > self._params.max_queue:
            raise Busy(self.waiting, max(1, math.ceil(self.waiting * self._pace)))
        request, now = _Request(len(sentences)), time.monotonic()
        self._queue += [
            _Waiting(sentence, count, settings, now, request, place)
            for place, (sentence, count) in enumerate(zip(sentences, tokens, strict=True))
        ]
        self._arrival.set()
        try:
            return await request.done
        finally:
            if request.missing:
                self._drop({request})

    async def run(self) -> None:
        """Translates what comes, until it is cancelled."""
        try:
            while True:
                await self._work(await self._next_batch())
        finally:
            self._thread.shutdown(wait=False)

    async def _work(self, batch):
        start, loop = time.monotonic(), asyncio.get_running_loop()
        sentences = [one.sentence for one in batch]
        try:
            answers = await loop.run_in_executor(
                self._thread, self._translate, sentences, batch[0].settings
            )
            answered = list(zip(batch, answers, strict=True))
        except Exception as error:
            failed = {one.request for one in batch}
            for request in failed:
                request.fail(error)
            self._drop(failed)
            return
        for one, answer in answered:
            one.request.answer(one.place, answer)
        seconds = time.monotonic() - start
        self._pace = _SMOOTHING * self._pace + (1 - _SMOOTHING) * seconds / len(batch)
        self._observe(len(batch), sum(one.tokens for one in batch), seconds)

    async def _next_batch(self):
        """Waits for a batch and takes it out of the queue."""
        while True:
            batch = self._choose()
            left = batch and batch[0].since + self._params.max_wait - time.monotonic()
            if batch and (left <= 0 or self._is_full(batch)):
                taken = set(batch)
                self._queue = [one for one in self._queue if one not in taken]
                return batch
            self._arrival.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrival.wait(), left or None)

    def _drop(self, requests):
        """Takes what is left of requests out of the queue."""
        self._queue = [one for one in self._queue if one.request not in requests]

    def _choose(self):
        """The batch of the oldest sentence, which is its first; [] if there is none."""
        if not self._queue:
            return []
        oldest, *others = self._queue
        alike = [one for one in others if one.settings == oldest.settings]
        batch, longest = [oldest], oldest.tokens
        for one in sorted(alike, key=lambda one: abs(one.tokens - oldest.tokens)):
            if self._fits(len(batch) + 1, max(longest, one.tokens)):
                batch.append(one)
                longest = max(longest, one.tokens)
        return batch

    def _is_full(self, batch):
        """Whether not even another sentence without tokens would fit."""
        return not self._fits(len(batch) + 1, max(one.tokens for one in batch))

    def _fits(self, sentences, longest):
        limits = self._params
        return sentences <= limits.max_sentences and sentences * longest <= limits.max_tokens
