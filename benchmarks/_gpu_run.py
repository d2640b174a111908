"""Runs an exported training step with only JAX and NumPy.

python run.py --steps=10     trains on batch.npz; loss and target tokens/s of each step
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.export
import numpy as np

HERE = Path(__file__).resolve().parent
MANIFEST = json.loads((HERE / "manifest.json").read_text())


def program(name):
    """The function of that name, such as (state, batch) -> results, for jax.jit's compiler."""
    described = MANIFEST["programs"][name]
    exported = jax.export.deserialize(bytearray((HERE / described["file"]).read_bytes()))
    return jax.jit(exported.call, donate_argnums=described["donated"])


def initial():
    """The initial state, drawn on the device."""
    return program("initialize")({"seed": np.int32(MANIFEST["seed"])})


def batch():
    """The example batch, on the device."""
    with np.load(HERE / MANIFEST["batch"]["file"]) as held:
        wanted = MANIFEST["programs"]["train"]["arguments"][1]
        return {name: jax.device_put(held[name]) for name in wanted}


def main():
    """Trains and prints each step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    steps, state, example = parser.parse_args().steps, initial(), batch()
    step = program("train").lower(state, example).compile()
    for _ in range(steps):
        start = time.perf_counter()
        state, metrics = step(state, example)
        tokens, nll = float(metrics["tokens"]), float(metrics["nll"])  # waits for the device
        rate = tokens / (time.perf_counter() - start)
        print(f"step {state['step']}  loss {nll / tokens:.6f}  {rate:,.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
