"""Batches, by budget and deadline, of a model that answers a sentence with itself in capitals."""

import asyncio
import random
import threading
import time

import pytest

from lingvo_moe.server.batcher import Batcher, QueueFull
from lingvo_moe.server.params import ServerParams

EN, DE = "en", "de"


class Model:
    """Records its batches; while `gate` is clear it does not finish one."""

    def __init__(self, fails=()):
        self.batches, self.gate, self._fails = [], threading.Event(), fails
        self.gate.set()

    def __call__(self, texts, language):
        self.batches.append((texts, language))
        assert self.gate.wait(60)
        if set(texts) & set(self._fails):
            raise ValueError(f"cannot translate {texts}")
        return [f"{text.upper()} in {language}" for text in texts]


def run(test, model=None, **params):
    """Awaits test(batcher, model) beside a batcher at work."""
    model = model or Model()

    async def main():
        batcher = Batcher(model, ServerParams(max_sentences=1, **params))
        worker = asyncio.create_task(batcher.run())
        try:
            async with asyncio.timeout(60):
                return await test(batcher, model)
        finally:
            model.gate.set()
            worker.cancel()

    return asyncio.run(main())


async def submit(batcher, text, language=EN):
    """Asks for sentences of one word each; a word has as many tokens as letters."""
    words = text.split()
    return await batcher.submit(words, [len(word) for word in words], language)


async def queued(batcher, count):
    while batcher.waiting != count:
        await asyncio.sleep(0.001)


async def while_busy(batcher, model, *requests):
    """Submits requests in order while the model works on something else; returns their tasks."""
    model.gate.clear()
    first = asyncio.create_task(submit(batcher, "z", "first"))
    while not model.batches:
        await asyncio.sleep(0.001)
    tasks, count = [], 0
    for text, language in requests:
        tasks.append(asyncio.create_task(submit(batcher, text, language)))
        count += len(text.split())
        await queued(batcher, count)
    return first, tasks


def batches_of(*requests, **params):
    """The batches that requests waiting together become, besides the first."""

    async def test(batcher, model):
        first, tasks = await while_busy(batcher, model, *requests)
        model.gate.set()
        await asyncio.gather(first, *tasks)
        return model.batches[1:]

    return run(test, max_wait_ms=0.0, **params)


@pytest.mark.parametrize(
    ("requests", "params", "expected"),
    [
        ([("a", EN), ("b", EN)], {}, ["a b"]),
        # 2 · 3 = 6 tokens fit, 3 · 3 = 9 do not.
        ([("aaa bbb ccc", EN)], {"max_batch_tokens": 8}, ["aaa bbb", "ccc"]),
        # Beside "aaaaa" any other sentence takes 5: two fit in 10, though 5 + 1 + 1 < 10.
        ([("aaaaa b c", EN)], {"max_batch_tokens": 10}, ["aaaaa b", "c"]),
        # The oldest goes with those nearest in length.
        ([("aaa b ccccc ddd e ff", EN)], {"max_batch_sentences": 3}, ["aaa ddd ff", "b e ccccc"]),
        ([("aaaaaa b", EN)], {"max_batch_tokens": 3}, ["aaaaaa", "b"]),
        ([("a", EN), ("b", DE), ("c", EN)], {}, ["a c", "b"]),  # one language
    ],
)
def test_batches(requests, params, expected):
    assert [" ".join(texts) for texts, _ in batches_of(*requests, **params)] == expected


class TestDeadline:
    def test_a_sentence_waits_no_longer_than_it_must(self):
        async def test(batcher, model):
            start = time.monotonic()
            one, two = await asyncio.gather(submit(batcher, "a"), submit(batcher, "b"))
            assert (one, two) == (["A in en"], ["B in en"])
            assert model.batches == [(["a", "b"], "en")]
            return time.monotonic() - start

        assert run(test, max_wait_ms=50.0) >= 0.05

    def test_a_full_batch_does_not_wait(self):
        async def test(batcher, model):
            answers = await asyncio.wait_for(submit(batcher, "aa bb"), timeout=100)
            assert answers == ["AA in en", "BB in en"]
            assert model.batches == [(["aa", "bb"], "en")]

        run(test, max_wait_ms=1e6, max_batch_tokens=4)


class TestRequests:
    def test_each_gets_its_own_answers_in_order(self):
        async def ask(batcher, number, chance):
            words = [
                f"w{number}x{'i' * chance.randint(1, 9)}{i}" for i in range(chance.randint(1, 7))
            ]
            language = chance.choice([EN, DE])
            got = await submit(batcher, " ".join(words), language)
            assert got == [f"{word.upper()} in {language}" for word in words]

        async def test(batcher, model):
            chance = random.Random(7)
            await asyncio.gather(*(ask(batcher, number, chance) for number in range(300)))
            assert 10 < len(model.batches) < 600

        run(test, max_batch_tokens=64)

    def test_nothing_to_translate(self):
        async def test(batcher, model):
            assert await submit(batcher, "") == []
            assert model.batches == [([], EN)], "the model checks the language"

        run(test)

    def test_one_that_is_cancelled_leaves_the_queue(self):
        async def test(batcher, model):
            first, (gone, stays) = await while_busy(batcher, model, ("a b", EN), ("c", EN))
            gone.cancel()
            await queued(batcher, 1)
            model.gate.set()
            assert await stays == ["C in en"]
            await first
            assert model.batches[1:] == [(["c"], "en")]

        run(test, max_wait_ms=0.0)

    def test_an_error_is_that_of_its_batch_alone(self):
        async def test(batcher, model):
            model.gate.clear()
            bad = asyncio.create_task(submit(batcher, "bad b ccccccc"))
            good = asyncio.create_task(submit(batcher, "good", DE))
            await queued(batcher, 2)  # "bad" and "b" are being translated
            model.gate.set()
            with pytest.raises(ValueError, match=r"cannot translate \['bad', 'b'\]"):
                await bad
            assert await good == ["GOOD in de"]
            assert model.batches[0] == (["bad", "b"], EN)

        run(test, Model(fails=["bad"]), max_wait_ms=0.0, max_batch_tokens=7)

    def test_a_full_queue_refuses_whole_requests_and_tells_when_it_will_have_room(self):
        """Two sentences that take 2.4 s each: 4.8 s, rounded up."""

        async def test(batcher, model):
            first, tasks = await while_busy(batcher, model, ("a b", EN))
            batcher._pace = 2.4
            with pytest.raises(
                QueueFull, match="2 sentences are waiting; try again in 5 s"
            ) as full:
                await submit(batcher, "c d")
            assert full.value.seconds == 5
            tasks.append(asyncio.create_task(submit(batcher, "e")))
            model.gate.set()
            assert await asyncio.gather(*tasks) == [["A in en", "B in en"], ["E in en"]]
            await first

        run(test, max_queue=3)
