import math

import pytest
import tensorflow as tf

from lingvo_moe.training.schedules import Constant, Cosine, InverseSquareRoot


def rates(schedule, steps):
    return [schedule(step).numpy() for step in steps]


def test_inverse_square_root_is_gshards_by_default():
    # 1/√10000 = 0.01 until step 10000; four times the steps, half the rate.
    schedule = InverseSquareRoot()
    assert rates(schedule, [1, 5000, 10_000, 40_000]) == pytest.approx([0.01, 0.01, 0.01, 0.005])


def test_inverse_square_root_with_linear_warmup():
    schedule = InverseSquareRoot(learning_rate=2.0, warmup_steps=100, linear_warmup=True)
    # 2/√100 = 0.2 at the peak; a tenth of it at step 10.
    assert rates(schedule, [1, 10, 100, 400]) == pytest.approx([0.002, 0.02, 0.2, 0.1])


def test_constant():
    assert rates(Constant(learning_rate=0.5), [1, 1000]) == [0.5, 0.5]
    assert rates(Constant(learning_rate=0.5, warmup_steps=5), [1, 5, 9]) == pytest.approx(
        [0.1, 0.5, 0.5]
    )


def test_cosine():
    schedule = Cosine(learning_rate=1.0, warmup_steps=10, total_steps=110, final_fraction=0.1)
    # Half-way down the wave: the mean of 1 and 0.1. A quarter: 0.1 + 0.9·(1 + cos 45°)/2.
    quarter = 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2
    assert rates(schedule, [1, 10, 35, 60, 110, 500]) == pytest.approx(
        [0.1, 1.0, quarter, 0.55, 0.1, 0.1], rel=1e-6
    )
    assert (schedule.end, InverseSquareRoot().end) == (None, None)
    assert Cosine(learning_rate=1.0, total_steps=7).end == 7


def test_schedules_as_long_as_the_run():
    as_long = Cosine(learning_rate=1.0, warmup_steps=None)
    assert as_long.over(110) == Cosine(learning_rate=1.0, warmup_steps=11, total_steps=110)
    assert as_long.over(5) == Cosine(learning_rate=1.0, total_steps=5)
    fixed = Cosine(learning_rate=1.0, warmup_steps=3, total_steps=7)
    assert fixed.over(9) == fixed
    assert Constant(learning_rate=1.0, warmup_steps=None).over(90).warmup_steps == 9
    with pytest.raises(ValueError, match="got 9"):
        Cosine(learning_rate=1.0, warmup_steps=10).over(9)
    with pytest.raises(ValueError, match="the run"):
        as_long(tf.constant(1))
