"""An exported training step on one GPU, compared with PyTorch: tokens/s, MFU, memory.

python benchmarks/gpu_step.py DIR [DIR ...] [--steps=20] [--engines=jax,torch]

Each DIR is an export of gpu_export.py; `make gpu-export` makes some. The
machine needs JAX and flatbuffers for the rows `jax` and PyTorch for the rows `torch`, but not this
package: copy this file, _torch_model.py and the DIRs to it. It runs on a CPU too. A row that fails,
or takes longer than --row_minutes, does not end the others.

The PyTorch model has weights of the same number and size, the same packed batch, Adafactor, top-2
experts and fused attention. Its experts have as many slots as the exported model's capacity gives;
without a capacity, as many as the busiest expert needs. `torch` is eager mode, `torch_compiled` the
same under torch.compile. MFU counts the matrix products of the real tokens of the batch, not those
of padding, one-hot dispatch or rematerialisation. It is relative to the peak in the data sheet of
the GPU, and for another device to the speed of one large product of the same dtype, measured by the
same engine. For float32 it is that of TF32, which both compilers use.
"""

import argparse
import json
import os
import resource
import runpy
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ENGINES = ("jax", "torch", "torch_compiled")
WARM_UP = 3
# Part of a device's name -> dtype -> FLOP/s; as in lingvo_moe/hardware/chips.py.
PEAKS = {
    "H100": {"bfloat16": 989e12, "float32": 495e12},
    "H200": {"bfloat16": 989e12, "float32": 495e12},
    "A100": {"bfloat16": 312e12, "float32": 156e12},
}
# What _torch_model.py computes: params of an export -> their values there.
TORCH = {
    "model.moe.gating": ("TopK", None),
    "model.moe.gating.k": ("2", None),
    "model.moe.gating.normalize": ("True", None),
    "model.moe.router": ("ByToken", None),
    "model.activation": ("ReLU",),
    "model.norm": ("RMSNorm",),
    "model.position": ("Relative",),
    "model.shared_embedding": ("False",),
    "optimizer": ("Adafactor",),
}


def main() -> None:
    """Runs each engine on each directory, in a process of its own, and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directories", nargs="+", type=Path, help="exports with a training step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--engines", default="jax,torch", help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--row_minutes", type=float, default=4.0, help="limit of a row")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.child, args.directories[0], args.steps)))
        return
    engines = args.engines.split(",")
    if unknown := sorted(set(engines) - set(ENGINES)):
        raise SystemExit(f"--engines has {', '.join(unknown)}; choose from {', '.join(ENGINES)}.")
    manifests = {
        path: json.loads((path / "manifest.json").read_text()) for path in args.directories
    }
    for i, (path, engine) in enumerate((path, engine) for path in manifests for engine in engines):
        row = _row(path, manifests[path], engine, args.steps, args.row_minutes)
        if i == 0:
            print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}")
        print(f"| {' | '.join(row.values())} |", flush=True)


def _row(directory, manifest, engine, steps, minutes):
    """The cells of a row, by column."""
    dtype = manifest["shape"]["activation_dtype"]
    said, failed = _in_a_process(directory, engine, steps, minutes)
    row = {
        "export, engine": f"{directory.name}, {dtype}, {engine}",
        "device": said.get("device", ""),
        "M weights": f"{manifest['parameters'] / 1e6:,.0f}",
        "ms/step": failed,
        **dict.fromkeys(("tokens/s", "TFLOP/s", "MFU", "GiB", "loss", "version"), ""),
    }
    if failed:
        return row
    seconds, tokens = said["seconds"], manifest["batch"]["target_tokens"]
    flops = sum(n for part, n in manifest["flops"].items() if part != "dispatch")
    rate = flops * _real_share(directory) / seconds
    known = (peaks[dtype] for name, peaks in PEAKS.items() if name in said["device"])
    peak = next(known, said["peak"])
    return row | {
        "ms/step": f"{1e3 * seconds:.1f}",
        "tokens/s": f"{tokens / seconds:,.0f}",
        "TFLOP/s": f"{rate / 1e12:.3g}",
        "MFU": f"{rate / peak:.1%} of {peak / 1e12:.3g}",
        "GiB": f"{said['memory'] / 2**30:.2f}",
        "loss": f"{said['first_loss']:.3f} to {said['loss']:.3f}",
        "version": said["version"],
    }


def _in_a_process(directory, engine, steps, minutes):
    """(what `measure` returns, "") or ({}, why there is no result)."""
    child = [sys.executable, __file__, str(directory), f"--steps={steps}", f"--child={engine}"]
    # JAX would take 75 % of the memory, and PyTorch takes all.
    environment = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"} | os.environ
    try:
        result = subprocess.run(
            child, stdout=subprocess.PIPE, text=True, timeout=60 * minutes, env=environment
        )
    except subprocess.TimeoutExpired:
        return {}, f"over {minutes:g} minutes"
    if result.returncode:
        return {}, "failed, see above"
    return json.loads(result.stdout.splitlines()[-1]), ""


def _real_share(directory):
    """The share of real tokens among the places of the batch."""
    with np.load(directory / "batch.npz") as held:
        segments = [held[f"{side}_segment_ids"] for side in ("source", "target")]
    return float(sum(map(np.count_nonzero, segments)) / sum(one.size for one in segments))


def measure(engine: str, directory: Path, steps: int) -> dict[str, object]:
    """Measures one engine on one directory.

    Returns:
        device, its name; seconds, the median of a step; peak, FLOP/s of one large product; memory,
        the peak in bytes (of the process, on a CPU); first_loss and loss, nats a target token;
        version, of the engine.
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

    runner = runpy.run_path(str(directory / "run.py"))
    dtype = runner["MANIFEST"]["shape"]["activation_dtype"]
    train = runner["program"]("train")
    state, batch = runner["initial"](), runner["batch"]()

    def step():
        nonlocal state
        state, metrics = train(state, batch)
        return float(metrics["nll"]) / float(metrics["tokens"])  # waits for the device

    seconds, losses = median_seconds(step, steps)
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("peak_bytes_in_use") or _host_bytes()
    state = None
    size = _product_size(device.platform)
    matrix = jax.random.normal(jax.random.key(0), (size, size), dtype)  # zeros would be faster
    product = jax.jit(lambda x: x @ x)
    best, _ = median_seconds(lambda: product(matrix).block_until_ready(), 10)
    return {
        "device": device.device_kind,
        "seconds": seconds,
        "peak": 2 * size**3 / best,
        "memory": memory,
        "first_loss": losses[0],
        "loss": losses[-1],
        "version": f"JAX {jax.__version__}",
    }


def _product_size(platform: str) -> int:
    return 1024 if platform == "cpu" else 8192


def measure_torch(directory: Path, steps: int, compiled: bool) -> dict[str, object]:
    """Measures the PyTorch model: weights in float32, products in the requested dtype."""
    import torch
    from _torch_model import Model

    manifest = json.loads((directory / "manifest.json").read_text())
    _check_torch(manifest)
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
            f"{manifest['parameters']}."
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
    matrix = torch.randn((size, size), device=device).to(dtype)

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
        "version": f"PyTorch {torch.__version__}",
    }


def _check_torch(manifest):
    """Raises SystemExit if _torch_model.py computes something else than the export."""
    for name, known in TORCH.items():
        if (value := manifest["params"].get(name)) not in known:
            raise SystemExit(
                f"{name}={value}, but _torch_model.py has {known[0]}: export with "
                f"--set={name}={known[0]}."
            )


if __name__ == "__main__":
    main()
