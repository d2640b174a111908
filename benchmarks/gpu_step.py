"""An exported training step on one GPU, compared with PyTorch: tokens/s, MFU, memory.

python benchmarks/gpu_step.py DIR [DIR ...] [--steps=20] [--peak=989] [--engines=jax,torch]

Each DIR is an export of `lingvo-moe-export --format=stablehlo`, for example one in float32 and one
with --set=activation_dtype=bfloat16. The machine needs JAX for the rows `jax` and PyTorch for the
rows `torch`, but not this package: copy this file, _torch_model.py and the DIRs to it. It runs on a
CPU too.

The PyTorch model has weights of the same number and size, the same packed batch, Adafactor, and
fused attention. Its experts have as many slots as the exported model's capacity gives; without a
capacity, as many as the busiest expert needs. `torch` is eager mode, `torch_compiled` the same
under torch.compile. MFU counts matrix products that the model needs, not those of one-hot dispatch
or rematerialisation. Without --peak it is relative to the speed of one large product of the same
dtype, measured by the same engine (TF32 for float32, which is the default of both compilers).
"""

import argparse
import json
import resource
import runpy
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ENGINES = ("jax", "torch", "torch_compiled")
WARM_UP = 3


def main() -> None:
    """Runs each engine on each directory, in a process of its own, and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directories", nargs="*", type=Path, help="exports with a training step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--peak", type=float, help="TFLOP/s of the device; measured by default")
    parser.add_argument("--engines", default="jax,torch", help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.directories:
        print(__doc__)
        return
    if args.child:
        print(json.dumps(measure(args.child, args.directories[0], args.steps)))
        return
    print("| model | dtype | engine | device | ms/step | tokens/s | TFLOP/s | MFU | GiB | loss |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for directory in args.directories:
        for engine in args.engines.split(","):
            print(_row(directory, engine, args), flush=True)


def _row(directory, engine, args):
    manifest = json.loads((directory / "manifest.json").read_text())
    name = f"| {manifest['model']} | {manifest['shape']['activation_dtype']} | {engine} |"
    child = [sys.executable, __file__, str(directory), f"--steps={args.steps}", f"--child={engine}"]
    result = subprocess.run(child, stdout=subprocess.PIPE, text=True)
    if result.returncode:
        return f"{name} failed, see above |"
    said = json.loads(result.stdout.splitlines()[-1])
    seconds, tokens = said["seconds"], manifest["batch"]["target_tokens"]
    rate = sum(n for part, n in manifest["flops"].items() if part != "dispatch") / seconds
    peak = args.peak * 1e12 if args.peak else said["peak"]
    return (
        f"{name} {said['device']} | {1e3 * seconds:.1f} | {tokens / seconds:,.0f} | "
        f"{rate / 1e12:.3g} | {rate / peak:.1%} of {peak / 1e12:.3g} | "
        f"{said['memory'] / 2**30:.2f} | {said['first_loss']:.3f} to {said['loss']:.3f} |"
    )


def measure(engine: str, directory: Path, steps: int) -> dict[str, object]:
    """Measures one engine on one directory.

    Returns:
        device, its name; seconds, the median of a step; peak, FLOP/s of one large product; memory,
        the peak in bytes (of the process, on a CPU); first_loss and loss, nats a target token.
    """
    run = measure_jax if engine == "jax" else measure_torch
    return run(directory, steps, **({} if engine == "jax" else {"compiled": "comp" in engine}))


def median_seconds(step, count: int) -> tuple[float, list[float]]:
    """The median time of a call after some warm-up calls, and the result of each call."""
    seconds, losses = [], []
    for _ in range(WARM_UP + count):
        start = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[WARM_UP:])), losses


def _host_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure_jax(directory: Path, steps: int) -> dict[str, object]:
    """Measures the exported program with the functions of its run.py."""
    import jax
    import jax.numpy as jnp

    runner = runpy.run_path(str(directory / "run.py"))
    dtype = runner["MANIFEST"]["shape"]["activation_dtype"]
    train = runner["program"]("train")
    state, batch = runner["initial"]("train"), runner["arrays"]("batch.npz", "train", 1)

    def step():
        nonlocal state
        state, metrics = train(state, batch)
        return float(metrics["nll"]) / float(metrics["tokens"])  # waits for the device

    seconds, losses = median_seconds(step, steps)
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("peak_bytes_in_use") or _host_bytes()
    state = None
    size = _product_size(device.platform)
    matrix = jnp.ones((size, size), dtype)
    product = jax.jit(lambda x: x @ x)
    best, _ = median_seconds(lambda: product(matrix).block_until_ready(), 10)
    return {
        "device": device.device_kind,
        "seconds": seconds,
        "peak": 2 * size**3 / best,
        "memory": memory,
        "first_loss": losses[0],
        "loss": losses[-1],
    }


def _product_size(platform: str) -> int:
    return 1024 if platform == "cpu" else 8192


def measure_torch(directory: Path, steps: int, compiled: bool) -> dict[str, object]:
    """Measures the PyTorch model: weights in float32, products in the requested dtype."""
    import torch
    from _torch_model import Model

    manifest = json.loads((directory / "manifest.json").read_text())
    shape = manifest["shape"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, shape["activation_dtype"])
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    with torch.device(device):
        model = Model(shape)
    count = sum(weight.numel() for weight in model.parameters())
    if count != manifest["parameters"]:
        raise SystemExit(
            f"_torch_model.py makes {count} weights, but the exported model has "
            f"{manifest['parameters']}: it has only plain and top-2 MoE layers with ReLU."
        )
    loss_of = torch.compile(model) if compiled else model
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3)
    with np.load(directory / "batch.npz") as held:
        batch = {n: torch.tensor(a, dtype=torch.int64, device=device) for n, a in held.items()}

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            nll, objective = loss_of(batch)
        objective.backward()
        optimizer.step()
        return nll.item()  # waits for the device

    seconds, losses = median_seconds(step, steps)
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else _host_bytes()
    size = _product_size(device)
    matrix = torch.ones((size, size), dtype=dtype, device=device)

    def product():
        matrix @ matrix
        if device == "cuda":
            torch.cuda.synchronize()

    best, _ = median_seconds(product, 10)
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "seconds": seconds,
        "peak": 2 * size**3 / best,
        "memory": memory,
        "first_loss": losses[0],
        "loss": losses[-1],
    }


if __name__ == "__main__":
    main()
