"""The server under load: throughput compared with lingvo-moe-translate, and overload.

python benchmarks/serve.py --logdir=DIR --input=FILE [--seconds=30] [--clients=64]
    [--requests=10000]

Prints sentences/s offline and with clients that each send one sentence at a time. Then it sends
requests at twice that rate, without waiting for answers, and checks that each gets its own
translation or is refused (429), and that memory does not grow. Ends with an error if an answer is
missing or wrong.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import lingvo_moe.tools  # noqa: F401  (TensorFlow logs less when it starts)
from lingvo_moe.system.lines import read_lines

MOST_CONNECTIONS = 500  # under overload; more requests than these wait in the client


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logdir", type=Path, required=True)
    parser.add_argument("--input", type=Path, required=True, help="sentences, one a line")
    parser.add_argument("--to", default="en")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=10_000, help="at twice the throughput")
    return parser.parse_args()


def offline(logdir, sentences, to, seconds):
    """Translations by sentence, and sentences/s of the translator that the tool uses."""
    from lingvo_moe.jobs.evaluation import load_translator
    from lingvo_moe.runtimes.local import Local
    from lingvo_moe.tasks.model_dir import ModelDir

    model_dir = ModelDir.open(logdir)
    translator, _ = load_translator(model_dir, Local(model_dir.task))
    translator(sentences[:64], to)  # compiles
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        translations = translator(sentences, to)
        done += len(sentences)
    speed = done / (time.perf_counter() - start)
    return {s: best[0].text for s, best in zip(sentences, translations, strict=True)}, speed


class Client:
    """One connection, with one sentence at a time."""

    def __init__(self, port, to):
        self._port, self._to, self._streams = port, to, None

    async def ask(self, sentence):
        """The status, and the translation."""
        body = json.dumps({"sentences": [sentence], "to": self._to}).encode()
        self._streams = self._streams or await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(
            b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        named = dict(header.lower().split(": ", 1) for header in headers if header)
        answer = json.loads(await reader.readexactly(int(named["content-length"])))
        code = int(status.split()[1])
        return code, answer["translations"][0][0]["text"] if code == 200 else None

    def close(self):
        if self._streams:
            self._streams[1].close()


async def closed_loop(port, sentences, expected, options):
    """Sentences/s of clients that each send a sentence and wait for the answer, repeatedly."""
    outcomes: Counter[str] = Counter()
    end = time.perf_counter() + options.seconds

    async def work(number):
        client, chance = Client(port, options.to), random.Random(number)
        while time.perf_counter() < end:
            sentence = chance.choice(sentences)
            outcomes[outcome(sentence, await client.ask(sentence), expected)] += 1
        client.close()

    start = time.perf_counter()
    await asyncio.gather(*map(work, range(options.clients)))
    return outcomes, outcomes["right"] / (time.perf_counter() - start)


async def open_loop(port, sentences, expected, rate, options):
    """Sends requests at a fixed rate; also measures the server's memory, in MB."""
    outcomes: Counter[str] = Counter()
    memory, chance = [], random.Random(3)
    free: list[Client] = []
    tasks, start = set(), time.perf_counter()
    room = asyncio.Semaphore(MOST_CONNECTIONS)

    async def work(sentence):
        async with room:
            client = free.pop() if free else Client(port, options.to)
            outcomes[outcome(sentence, await client.ask(sentence), expected)] += 1
            free.append(client)

    for number in range(options.requests):
        await asyncio.sleep(max(0, start + number / rate - time.perf_counter()))
        task = asyncio.create_task(work(chance.choice(sentences)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if number % (options.requests // 5) == 0:
            memory.append(await asyncio.to_thread(resident, port))
    await asyncio.gather(*tasks)
    memory.append(await asyncio.to_thread(resident, port))
    for client in free:
        client.close()
    return outcomes, memory


def outcome(sentence, answer, expected):
    """The outcome of a request: "right", "refused" (429), "mixed up" or another status."""
    status, text = answer
    if status != 200:
        return {429: "refused"}.get(status, f"status {status}")
    return "right" if text == expected[sentence] else "mixed up"


def resident(port):
    """The server's memory in MB, from its metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines())
    return round(float(lines["process_resident_memory_bytes"]) / 1e6)


def main():
    """Prints the throughput of 64 clients, and the outcomes at twice the capacity."""
    options = parse()
    sentences = sorted({line for line in read_lines(options.input) if line})
    expected, alone = offline(options.logdir, sentences, options.to, options.seconds)
    print(f"offline: {alone:.0f} sentences/s")
    # A short queue, so that twice the capacity fills it.
    command = [sys.executable, "-m", "lingvo_moe.tools.serve", f"--model={options.logdir}"]
    flags = ["--port=0", "--max_queue=256", "--timeout=300"]
    with subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True) as server:
        try:
            port = _port(server)
            outcomes, speed = asyncio.run(closed_loop(port, sentences, expected, options))
            print(
                f"{options.clients} clients: {speed:.0f} sentences/s, {speed / alone:.0%} of "
                f"offline; {dict(outcomes)}"
            )
            overload, memory = asyncio.run(open_loop(port, sentences, expected, 2 * speed, options))
            print(f"{options.requests} requests at {2 * speed:.0f}/s: {dict(overload)}")
            print(f"memory: {', '.join(map(str, memory))} MB")
        finally:
            server.terminate()
    wrong = set(outcomes) | set(overload) - {"refused"}
    if wrong - {"right"} or sum(overload.values()) != options.requests:
        sys.exit("error: requests were lost or mixed up.")


def _port(server):
    for line in iter(server.stderr.readline, ""):
        if line.startswith("Serving "):
            return int(line.rsplit(":", 1)[1].strip("/\n"))
    sys.exit("error: the server did not start.")


if __name__ == "__main__":
    main()
