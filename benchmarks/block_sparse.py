"""Products with block-sparse matrices as a share of dense ones: three models, six products.

python benchmarks/block_sparse.py DIR [--dtype=float32] [--rounds=5]

The 18 problems of MegaBlocks (Gale et al. 2022, arXiv 2211.15841, section 6.3): the experts of
MoE-XS, Small and Medium, 64 of them under even loads, in blocks of 128. A dense product is one
batched product of the same operands without blocks. Every round times both, and what the two give
is compared.

If DIR is not there it is written, exported as StableHLO for CPU and CUDA, which needs this package.
To run it needs JAX alone: for another machine copy this file and DIR, and there leave --dtype away.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

# M, H and tokens in a micro-batch of sequences of 1024, the largest that fitted there (table 3).
MODELS = {
    "MoE-XS": (512, 2048, 64 * 1024),
    "MoE-Small": (768, 3072, 32 * 1024),
    "MoE-Medium": (1024, 4096, 8 * 1024),
}
EXPERTS, BLOCK = 64, 128
# The operands, as letters of E experts, T tokens of each, M and H; what dense they come to.
PRODUCTS = {
    "sdd": "ETM,EMH->ETH",
    "dsd": "ETH,EHM->ETM",
    "sddt": "ETM,EHM->ETH",
    "dstd": "ETH,ETM->EHM",
    "dsdt": "ETH,EMH->ETM",
    "ddts": "ETM,ETH->EMH",
}


def write(directory: Path, dtype: str) -> None:
    """Exports every problem."""
    import lingvo_moe.tools  # noqa: F401  (silences TensorFlow's greeting)
    from lingvo_moe.layers import block_sparse
    from lingvo_moe.runtimes.lowering import ArraySpec
    from lingvo_moe.serving.stablehlo import Program, lower

    def program(model, product):
        _, _, tokens = MODELS[model]
        num_rows = tokens // BLOCK + EXPERTS  # the bound that any load needs

        def run(operands):
            left, right, row_blocks = operands.left, operands.right, operands.row_blocks
            topology = block_sparse.block_diagonal(row_blocks, num_rows, (1,) * EXPERTS)
            return {"result": getattr(block_sparse, product)(left, right, topology)}

        letters = PRODUCTS[product].split("->")[0].split(",")
        specs = {
            name: ArraySpec(_shape(model, of, num_rows), dtype, of.replace("ET", "RB"))
            for name, of in zip(("left", "right"), letters, strict=True)
        }
        return Program(run, [specs | {"row_blocks": ArraySpec((EXPERTS,), "int32", "E")}])

    directory.mkdir(parents=True)
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


def measure(directory: Path, model: str, product: str, rounds: int) -> tuple[float, float, float]:
    """Seconds, sparse and dense, and the sparse one's share of the dense one's speed: medians.

    Raises:
        AssertionError: the two give different results.
    """
    dtype = json.loads((directory / "manifest.json").read_text())["dtype"]
    _, _, tokens = MODELS[model]
    used = tokens // BLOCK
    equation = PRODUCTS[product]
    keys = jax.random.split(jax.random.key(0))
    blocks = [
        jax.random.normal(key, _shape(model, letters, used + EXPERTS), dtype)
        for key, letters in zip(keys, equation.split("->")[0].split(","), strict=True)
    ]

    def without_blocks(array, letters):
        return array[:used].reshape(EXPERTS, -1, array.shape[-1]) if "T" in letters else array

    letters, result_letters = equation.split("->")
    flat = [without_blocks(*each) for each in zip(blocks, letters.split(","), strict=True)]
    row_blocks = jnp.full([EXPERTS], used // EXPERTS, jnp.int32)
    exported = jax.export.deserialize(
        bytearray((directory / f"{model}.{product}.stablehlo").read_bytes())
    )
    operands = dict(zip(("left", "right"), blocks, strict=True), row_blocks=row_blocks)
    sparse, einsum = jax.jit(exported.call), jax.jit(lambda *x: jnp.einsum(equation, *x))
    runs = (lambda: sparse(operands)["result"], lambda: einsum(*flat))
    _compare(without_blocks(runs[0](), result_letters), runs[1]())
    seconds = np.array([[_seconds(run) for run in runs] for _ in range(rounds)])
    return *np.median(seconds, axis=0), float(np.median(seconds[:, 1] / seconds[:, 0]))


def _compare(result, dense):
    scale = jnp.std(dense.astype(jnp.float32))
    error = jnp.max(jnp.abs(result.astype(jnp.float32) - dense.astype(jnp.float32))) / scale
    # Of sums of thousands: the last bits of float32 and its products, or those of bfloat16.
    bound = 0.05 if dense.dtype == jnp.bfloat16 else 0.005
    assert error < bound, f"sparse and dense differ by {error} standard deviations"


def _seconds(run) -> float:
    start = time.perf_counter()
    run().block_until_ready()
    return time.perf_counter() - start


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if not args.directory.exists():
        write(args.directory, args.dtype)
    print(f"| {jax.devices()[0].device_kind} | sparse, ms | dense, ms | share of dense |")
    print("|---|---|---|---|")
    shares = []
    for model in MODELS:
        for product in PRODUCTS:
            sparse, dense, share = measure(args.directory, model, product, args.rounds)
            cells = f"{1e3 * sparse:.4g} | {1e3 * dense:.4g} | {share:.1%}"
            print(f"| {model}, {product.upper()} | {cells} |", flush=True)
            shares.append(share)
    print(f"| mean, standard deviation | | | {np.mean(shares):.1%}, {np.std(shares):.1%} |")


if __name__ == "__main__":
    main()
