"""Runs itself in a process of its own, where JAX has virtual devices."""

import json

import pytest

from lingvo_moe.testing.devices import run_on

pytest.importorskip("jax")

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_through_exact_times(kind):
    from lingvo_moe.hardware.calibrate import fit
    from lingvo_moe.hardware.links import Line, Measured, block

    line = Line(kind, 2e-6, 5e9)
    wires = Measured(lines=(line,))
    samples = [
        (n, size, wires.seconds(kind, size, block(n))) for n in (2, 4, 8) for size in (2**10, 2**24)
    ]
    found = fit(kind, samples)
    assert (found.alpha, found.beta) == pytest.approx((line.alpha, line.beta))


def test_neither_is_below_zero():
    from lingvo_moe.hardware.calibrate import fit

    # 2 · 1/2 and 2 · 3/4 of the bytes at 1 a second, the second a hair faster: more hops cost less.
    falling = fit("all-reduce", [(2, 100, 100.0), (4, 100, 149.0)])
    assert falling.alpha == 0.0
    assert falling.beta == pytest.approx(1.0, rel=0.01)


def test_what_is_measured(tmp_path):
    path = tmp_path / "here.json"
    path.write_text(json.dumps(run_on(2, __file__)))
    from lingvo_moe.hardware.chips import MEASURED, find_hardware

    hardware = find_hardware(str(path))
    assert {line.kind for line in hardware.interconnect.lines} == set(KINDS)
    assert all(line.alpha >= 0 and line.beta > 0 for line in hardware.interconnect.lines)
    assert hardware.efficiency == MEASURED
    # A device reaches more than 10 MFLOP/s and less than 1 PFLOP/s.
    assert all(1e7 < speed < 1e15 for speed in hardware.matmul.values())
    assert 1e6 < hardware.bandwidth < 1e14


if __name__ == "__main__":
    from lingvo_moe.hardware import calibrate, chips

    calibrate._SIZES = (2**12, 2**16)
    print(json.dumps(chips.hardware_to_json(calibrate.calibrate())))
