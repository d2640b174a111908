"""The protocol of a peer: it describes itself, then times steps on request, in JSON lines."""

import json
import os
import resource
import sys
import time
from collections.abc import Callable

import numpy as np

SHAPE = {
    "vocab_size": 8000,
    "model_dim": 256,
    "hidden_dim": 1024,
    "num_heads": 4,
    "head_dim": 64,
    "layers": 4,  # a side
    "num_experts": 8,
    "every_n": 2,
    "batch_size": 32,
    "length": 64,  # of either side
}
if os.environ.get("PEERS_SHAPE") == "tiny":
    SHAPE |= {"model_dim": 64, "hidden_dim": 128, "num_heads": 2, "head_dim": 32, "layers": 2}
STEPS = int(os.environ.get("PEERS_STEPS", "32"))  # of decoding, and tokens of a source
FIRST_WORD = 4
_WARM_UP = 3


def batch() -> dict[str, np.ndarray]:
    """int64 [B, T] without padding: source_ids, target_inputs, target_ids."""
    rng, size = np.random.default_rng(0), (SHAPE["batch_size"], SHAPE["length"])
    names = ("source_ids", "target_inputs", "target_ids")
    return {n: rng.integers(FIRST_WORD, SHAPE["vocab_size"], size) for n in names}


def sources(batch_size: int) -> np.ndarray:
    """int32 [B, STEPS], random words to translate."""
    rng = np.random.default_rng(0)
    return rng.integers(FIRST_WORD, SHAPE["vocab_size"], (batch_size, STEPS), np.int32)


def fingerprint(ids: np.ndarray) -> float:
    """A checksum of translations int [B, STEPS] without their last tokens."""
    places = np.arange(1, ids[:, : STEPS - 1].size + 1).reshape(len(ids), -1)
    return float(np.sum(ids[:, : STEPS - 1] * places))


def serve(step: Callable[..., float], about: str, **more) -> None:
    """Runs until stdin ends: {"steps": n, …} -> seconds, cpu_seconds, loss, peak_bytes.

    Args:
        step: runs one training step and returns its loss, or some other work and a number to
            compare. The other fields of a request are its keyword arguments.
        about: what this is, in words.
        more: further facts for the first line.
    """
    # A pipe of its own, opened before the first step, because libraries print to standard output.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(**message):
        print(json.dumps(message), file=replies, flush=True)

    for _ in range(_WARM_UP):
        step()
    reply(about=about, **more)
    for line in sys.stdin:
        request = json.loads(line)
        steps = request.pop("steps")
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            loss = step(**request)
        reply(
            seconds=(time.perf_counter() - wall) / steps,
            cpu_seconds=(time.process_time() - cpu) / steps,
            loss=loss,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )
