"""Step time and memory for more experts, tokens and layers: one table for each.

python benchmarks/growth.py [--rounds=7] [--threads=2] [--only=experts,tokens,layers] [--cpu_time]

The model is that of benchmarks/peers.py, dropless. Each size runs in a process of its own, because
memory is the peak of a process; steps alternate between processes.
"""

import argparse

import numpy as np
from peers import DROPLESS, ours, race, ratio

from lingvo_moe.reporting.table import Table

GROWTH = {
    "experts": {f"E = {e}": [f"model.moe.num_experts={e}"] for e in (8, 32, 128)},
    "tokens": {f"{rows} x 64": [f"input.batch_size={rows}"] for rows in (16, 32, 64)},
    "layers": {
        f"{n} + {n}": [f"model.num_encoder_layers={n}", f"model.num_decoder_layers={n}"]
        for n in (2, 4, 8)
    },
}


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default=",".join(GROWTH), help="sizes to change")
    parser.add_argument("--cpu_time", action="store_true", help="measure processor time")
    args = parser.parse_args()
    clock = "cpu_seconds" if args.cpu_time else "seconds"
    for kind in args.only.split(","):
        peers = {n: ours(args.threads, *DROPLESS, *more) for n, more in GROWTH[kind].items()}
        results = race(peers, args.rounds)
        base, start = results[next(iter(peers))], None
        columns = (kind, "weights", "ms per step", "time / first", "memory, MB", "memory / first")
        rows = []
        for name, rounds in results.items():
            held = rounds[-1]["peak_bytes"]
            start = start or held
            rows.append(
                (
                    name,
                    f"{peers[name].about['weights'] / 1e6:.1f}M",
                    f"{1e3 * np.median([r[clock] for r in rounds]):.0f}",
                    f"{ratio(rounds, base, clock):.2f}",
                    f"{held / 2**20:.0f}",
                    f"{held / start:.2f}",
                )
            )
        print(f"\n{Table(columns, rows).to_markdown()}")
        for peer in peers.values():
            peer.close()


if __name__ == "__main__":
    main()
