"""Products with block-sparse matrices as a share of dense ones: three models, six products.

python benchmarks/block_sparse.py DIR [--export=DTYPE] [--rounds=5]

The experts of MegaBlocks' MoE-XS, Small and Medium (Gale et al. 2022, arXiv 2211.15841), 64 of them
under even loads, in blocks of 128. A dense product is one batched product of the same operands
without blocks. Every round times both; the results of both are compared. A time is that of several
calls in a row, at least 20 ms if they are short, divided by their number.

--export=float32 or bfloat16 first writes the programs into DIR, as StableHLO for CPU and CUDA; this
needs the package. Running them needs only JAX and flatbuffers: copy this file and DIR to another
machine. --rounds=0 only exports: in bfloat16 a CPU may take a minute for one product.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

# M, H and tokens.
MODELS = {
    "MoE-XS": (512, 2048, 64 * 1024),
    "MoE-Small": (768, 3072, 32 * 1024),
    "MoE-Medium": (1024, 4096, 8 * 1024),
}
EXPERTS, BLOCK = 64, 128
# Operands and result of the dense product: E experts, T tokens of each, M and H. The function of
# megablocks/block_sparse.py, and whether it gets `transpose`.
PRODUCTS = {
    "sdd": ("ETM", "EMH", "ETH", "sampled", False),
    "dsd": ("ETH", "EHM", "ETM", "summed_by_row", False),
    "sddt": ("ETM", "EHM", "ETH", "sampled", True),
    "dstd": ("ETM", "ETH", "EHM", "summed_by_column", True),
    "dsdt": ("ETH", "EMH", "ETM", "summed_by_row", True),
    "ddts": ("ETM", "ETH", "EMH", "summed_by_column", False),
}
_WARM_UP, _LEAST_SECONDS = 3, 0.02


def write(directory: Path, dtype: str) -> None:
    """Exports every product of every model."""
    import lingvo_moe.tools  # noqa: F401  (TensorFlow logs less when it starts)
    from lingvo_moe.megablocks import block_sparse as products
    from lingvo_moe.runtimes.lowering import ArraySpec
    from lingvo_moe.serving.stablehlo import Program, lower

    def program(model, product):
        _, _, tokens = MODELS[model]
        num_rows = tokens // BLOCK + EXPERTS  # enough for any load

        def run(operands):
            left, right, row_blocks = operands.left, operands.right, operands.row_blocks
            topology = products.block_diagonal(row_blocks, num_rows)
            *_, function, transpose = PRODUCTS[product]
            return {"result": getattr(products, function)(left, right, topology, transpose)}

        specs = {
            name: ArraySpec(_shape(model, letters, num_rows), dtype, letters.replace("ET", "RB"))
            for name, letters in zip(("left", "right"), PRODUCTS[product][:2], strict=True)
        }
        return Program(run, [specs | {"row_blocks": ArraySpec((EXPERTS,), "int32", "E")}])

    directory.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        for product in PRODUCTS:
            exported = lower(program(model, product))
            (directory / f"{model}.{product}.stablehlo").write_bytes(exported.serialize())
    (directory / "manifest.json").write_text(json.dumps({"dtype": dtype}))


def _shape(model: str, letters: str, num_rows: int) -> tuple[int, ...]:
    """Of an operand in blocks: its tokens are num_rows times BLOCK rows."""
    model_dim, hidden_dim, _ = MODELS[model]
    sizes = {"E": EXPERTS, "M": model_dim, "H": hidden_dim}
    if letters.startswith("ET"):
        return num_rows, BLOCK, sizes[letters[2]]
    return tuple(sizes[letter] for letter in letters)


def measure(
    program: Path, dtype: str, model: str, product: str, rounds: int
) -> tuple[float, float, float]:
    """Seconds, sparse and dense, and the sparse one's share of the dense one's speed: medians.

    Raises:
        AssertionError: the two give different results.
    """
    _, _, tokens = MODELS[model]
    used = tokens // BLOCK
    left, right, result, *_ = PRODUCTS[product]
    blocks = [
        jax.random.normal(jax.random.key(i), _shape(model, letters, used + EXPERTS), dtype)
        for i, letters in enumerate((left, right))
    ]

    def without_blocks(array, letters):
        return array[:used].reshape(EXPERTS, -1, array.shape[-1]) if "T" in letters else array

    flat = [without_blocks(blocks[0], left), without_blocks(blocks[1], right)]
    row_blocks = jnp.full([EXPERTS], used // EXPERTS, jnp.int32)
    exported = jax.export.deserialize(bytearray(program.read_bytes()))
    operands = dict(zip(("left", "right"), blocks, strict=True), row_blocks=row_blocks)
    sparse = jax.jit(exported.call)
    einsum = jax.jit(lambda *x: jnp.einsum(f"{left},{right}->{result}", *x))
    runs = (lambda: sparse(operands)["result"], lambda: einsum(*flat))
    _compare(without_blocks(runs[0](), result), runs[1]())
    calls = [_calls(run) for run in runs]
    seconds = np.array(
        [[_seconds(run, n) for run, n in zip(runs, calls, strict=True)] for _ in range(rounds)]
    )
    return *np.median(seconds, axis=0), float(np.median(seconds[:, 1] / seconds[:, 0]))


def _compare(result, dense):
    scale = jnp.std(dense.astype(jnp.float32))
    error = jnp.max(jnp.abs(result.astype(jnp.float32) - dense.astype(jnp.float32))) / scale
    # Rounding errors of sums of thousands of products, in float32 or bfloat16.
    bound = 0.1 if dense.dtype == jnp.bfloat16 else 0.005
    assert error < bound, f"sparse and dense differ by {error} standard deviations"


def _calls(run) -> int:
    """The number of calls in a row that are timed together; also warms up."""
    least = min(_seconds(run, 1) for _ in range(_WARM_UP))
    return max(1, min(100, round(_LEAST_SECONDS / least)))


def _seconds(run, calls) -> float:
    """The mean of several calls. The device runs them in order; the last result is waited for."""
    start = time.perf_counter()
    for _ in range(calls):
        result = run()
    result.block_until_ready()
    return (time.perf_counter() - start) / calls


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="of the exported programs")
    parser.add_argument("--export", choices=["float32", "bfloat16"], help="first export")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.export:
        write(args.directory, args.export)
    if args.rounds:
        run_all(args.directory, args.rounds)


def run_all(directory: Path, rounds: int) -> None:
    """Prints the table, row by row; a product that fails does not end the others.

    Raises:
        SystemExit: a product failed.
    """
    dtype = json.loads((directory / "manifest.json").read_text())["dtype"]
    head = ("product", "device", "sparse, ms", "dense, ms", "share of dense", "version")
    device, version = jax.devices()[0].device_kind, f"JAX {jax.__version__}"
    shares, failed = [], []
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for model, product in ((model, product) for model in MODELS for product in PRODUCTS):
        name = f"{model}, {product.upper()}, {dtype}"
        try:
            program = directory / f"{model}.{product}.stablehlo"
            sparse, dense, share = measure(program, dtype, model, product, rounds)
        except Exception as error:
            failed.append(f"{name}: {error!r:.300}")
            print(failed[-1], file=sys.stderr, flush=True)
            continue
        shares.append(share)
        cells = f"{1e3 * sparse:.4g}", f"{1e3 * dense:.4g}", f"{share:.1%}"
        print(f"| {' | '.join((name, device, *cells, version))} |", flush=True)
    if shares:
        print(f"Mean share {np.mean(shares):.1%}, standard deviation {np.std(shares):.1%}.")
    if failed:
        raise SystemExit(f"{len(failed)} products failed; see above.")


if __name__ == "__main__":
    main()
