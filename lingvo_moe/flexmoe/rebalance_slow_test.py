"""The same on eight devices; runs itself in a process where JAX has them."""

import functools
import json

import numpy as np
import pytest

from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.testing.devices import run_on
from lingvo_moe.testing.drifting_load import (
    DEVICES,
    assert_balances_and_learns,
    batch,
    rebalanced,
    task,
)

STEPS, WARM = 60, 20

pytestmark = pytest.mark.slow


@functools.cache
def on_eight_devices():
    return run_on(8, __file__)


def test_eight_devices_follow_a_skewed_and_drifting_load():
    report = on_eight_devices()
    assert_balances_and_learns(
        [NestedMap({n: np.array(v) for n, v in m.items()}) for m in report["metrics"]]
    )
    assert report["moves"] > 0
    assert report["programs"] <= DEVICES * (DEVICES + 1) // 2  # of pairs of devices


def test_a_step_exchanges_tokens_there_and_back_and_little_else():
    """Tokens and the weights of their choices, and sums back; gradients of sums and weights.

    Inputs need no gradient. Also an AllGather of loads, and AllReduces of gradients and metrics.
    """
    counts = on_eight_devices()["collectives"]
    assert counts["all-to-all"] == 5
    assert counts["all-gather"] == 1
    assert set(counts) == {"all-to-all", "all-gather", "all-reduce"}


def main():
    """Trains; prints each step's metrics, what moved late, and the number of programs of copies."""
    from lingvo_moe.runtimes.hlo import collectives, count
    from lingvo_moe.runtimes.lowering import Layout, batch_specs, partition_train_step, shapes
    from lingvo_moe.runtimes.spmd import Spmd
    from lingvo_moe.sbp.types import parse_mesh

    one = task()
    devices = Layout(parse_mesh(f"expert:{DEVICES}"))
    runtime = rebalanced(Spmd(one, one.step(), devices))
    metrics = [runtime.train(batch(step)) for step in range(STEPS)]
    names = ("balance_ratio", "nll", "dropped", "source_load")
    report = {
        "metrics": [{name: np.asarray(m[name]).tolist() for name in names} for m in metrics],
        "moves": sum(float(m.moves[0]) for m in metrics[WARM:]),
        "programs": sum(key[0][0] == "exchange" for key in runtime._programs),
    }
    specs = batch_specs(batch(0))
    program, args = partition_train_step(one.step().on_rungs[0], specs, devices)
    text = program.lower(*shapes(args)).compile().as_text()
    report["collectives"] = count(collectives(text))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
