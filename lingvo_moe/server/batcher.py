"""Collects the sentences of many requests into batches, which one thread translates."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from lingvo_moe.server.params import ServerParams

_START_PACE = 0.05  # assumed seconds a sentence before the first batch
_SMOOTHING = 0.9


class QueueFull(Exception):
    """The queue is full; `seconds` is the estimated time until there is room."""

    def __init__(self, waiting: int, seconds: int):
        super().__init__(f"{waiting} sentences are waiting; try again in {seconds} s.")
        self.seconds = seconds


@dataclasses.dataclass(frozen=True, eq=False)
class _Waiting:
    """A sentence in the queue."""

    sentence: Any
    tokens: int
    settings: Hashable
    since: float
    answer: asyncio.Future


class Batcher:
    """A queue of sentences for one model.

    The next batch has the oldest sentence and the sentences with equal settings that are closest to
    it in length, from any requests. A batch starts when it is full, or when its oldest sentence has
    waited `max_wait_ms`. Only the translation runs outside the event loop's thread.
    """

    def __init__(
        self,
        translate: Callable[[list[Any], Any], Sequence[Any]],
        params: ServerParams,
        observe: Callable[[int, float], None] = lambda sentences, seconds: None,
    ):
        """Creates the queue; `run` processes it.

        Args:
            translate: (sentences, settings) -> an answer for each; called in a thread of its own.
            params: the limits.
            observe: called for each batch with its sentences and seconds.
        """
        self._translate, self._params, self._observe = translate, params, observe
        self._queue: list[_Waiting] = []
        self._arrival = asyncio.Event()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "translate")
        self._pace = _START_PACE

    @property
    def waiting(self) -> int:
        """The number of sentences in the queue, without the batch being translated."""
        return len(self._queue)

    async def submit(
        self, sentences: Sequence[Any], tokens: Sequence[int], settings: Hashable
    ) -> list[Any]:
        """The answers of one request. If it is cancelled, its sentences are removed from the queue.

        Args:
            sentences: to translate.
            tokens: the length of each.
            settings: such as languages; a batch has only sentences with equal settings.

        Raises QueueFull: the queue has no room for all of them; Exception: an error of `translate`
        for a batch with one of them.
        """
        if not sentences:  # translate checks the settings
            return await self._answers([], settings)
        if self.waiting + len(sentences) > self._params.max_queue:
            raise QueueFull(self.waiting, max(1, math.ceil(self.waiting * self._pace)))
        now, loop = time.monotonic(), asyncio.get_running_loop()
        added = [
            _Waiting(sentence, count, settings, now, loop.create_future())
            for sentence, count in zip(sentences, tokens, strict=True)
        ]
        self._queue += added
        self._arrival.set()
        try:
            return await asyncio.gather(*(one.answer for one in added))
        finally:  # after an error, or if the request is cancelled, some have no answer
            for one in added:
                one.answer.cancel()
            self._queue = [one for one in self._queue if not one.answer.done()]

    async def run(self) -> None:
        """Translates batches until it is cancelled."""
        try:
            while True:
                await self._work(await self._next_batch())
        finally:
            self._thread.shutdown(wait=False)

    async def _work(self, batch):
        start = time.monotonic()
        try:
            answers = await self._answers([one.sentence for one in batch], batch[0].settings)
            answered = list(zip(batch, answers, strict=True))
        except Exception as error:
            for one in batch:
                if not one.answer.done():
                    one.answer.set_exception(error)
            return
        for one, answer in answered:
            if not one.answer.done():
                one.answer.set_result(answer)
        seconds = time.monotonic() - start
        self._pace = _SMOOTHING * self._pace + (1 - _SMOOTHING) * seconds / len(batch)
        self._observe(len(batch), seconds)

    async def _answers(self, sentences, settings):
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._translate, sentences, settings)

    async def _next_batch(self):
        """Waits for a batch and removes it from the queue."""
        while True:
            batch = self._choose()
            left = batch and batch[0].since + self._params.max_wait_ms / 1000 - time.monotonic()
            if batch and (left <= 0 or self._is_full(batch)):
                taken = set(batch)
                self._queue = [one for one in self._queue if one not in taken]
                return batch
            self._arrival.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrival.wait(), left or None)

    def _choose(self):
        """The batch of the oldest sentence, which is first in it; [] for an empty queue."""
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
        """Whether no other sentence fits, even without tokens."""
        return not self._fits(len(batch) + 1, max(one.tokens for one in batch))

    def _fits(self, sentences, longest):
        limits = self._params
        return (
            sentences <= limits.max_batch_sentences
            and sentences * longest <= limits.max_batch_tokens
        )
