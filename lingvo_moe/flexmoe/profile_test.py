"""Tests of the start-up profile: eight virtual devices in a process of their own."""

import json

import pytest

pytest.importorskip("jax")

from lingvo_moe.testing.devices import run_on

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def measured():
    return run_on(8, __file__)


def test_programs_do_what_is_timed(measured):
    # Every entry 0.01: 8 products of 0.0001 pass the ReLU, 16 of 0.0008 · 0.01 make an output.
    assert measured["output"] == pytest.approx(16 * 0.0008 * 0.01)
    assert measured["expert"] == [[5, 8], [5, 8], [8, 16], [16, 8]]
    assert [text[-1] for text in measured["where"]] == ["3", "6"]
    # Eight bytes are two numbers; devices hold 0, 1 and 2.
    assert measured["sum"] == [[3.0, 3.0]] * 3


def test_every_measurement_is_taken_in_every_round(measured):
    assert measured["counted"] == ["a", "b"] * 3  # once to compile
    assert measured["seconds"] == [2, 2]


def test_a_profile_holds_what_the_cost_model_needs(measured):
    # 32 bytes a token; 2 · 8 · 16 weights of four bytes.
    assert measured["bytes"] == [32, 1024]
    assert measured["compute"] == [[4], [8]]
    assert measured["exchange"] == [[512], [2048]]
    assert measured["all_reduce"] == [[n, size] for n in (2, 4, 8) for size in (512, 2048)]
    assert measured["positive"]
    assert measured["errors"] == ["all_reduce", "compute", "exchange"]


def main():
    """Measures eight virtual devices, and prints what the tests look at."""
    import numpy as np

    from lingvo_moe.flexmoe.profile import Machine, measure, timed

    machine = Machine(model_dim=8, hidden_dim=16)
    counted = []
    seconds = timed([lambda: counted.append("a"), lambda: counted.append("b")], 2)
    outputs, (to_inputs, to_wi, to_wo) = machine.expert_step(3, 5)()
    profile = measure(machine, tokens=(4, 8), rounds=1)
    _, errors = profile.fit(token_bytes=1.0, gradient_bytes=2.0, state_bytes=3.0)
    print(
        json.dumps(
            {
                "counted": counted,
                "seconds": seconds.shape,
                "bytes": [machine.token_bytes, machine.gradient_bytes],
                "expert": [list(x.shape) for x in (outputs, to_inputs, to_wi, to_wo)],
                "output": float(outputs[0, 0]),
                "where": [str(outputs.device), str(machine.transfer(1, 6, 8)().device)],
                "sum": np.asarray(machine.all_reduce([1, 4, 7], 8)()).tolist(),
                "compute": [row[:-1] for row in profile.compute],
                "exchange": [row[:-1] for row in profile.exchange],
                "all_reduce": [row[:-1] for row in profile.all_reduce],
                "positive": min(
                    row[-1] for f in vars(profile).values() if type(f) is tuple for row in f
                )
                > 0,
                "errors": sorted(errors),
            }
        )
    )


if __name__ == "__main__":
    main()
