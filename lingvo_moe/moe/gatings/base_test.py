import pytest

from lingvo_moe.moe.gatings.base import expert_capacity


@pytest.mark.parametrize(
    ("factor", "group_size", "num_experts", "capacity"),
    [
        (2.0, 64, 8, 16),
        (2.0, 65, 8, 17),  # 16.25, rounded up
        (1.1, 100, 10, 11),  # although 1.1 · 100 / 10 is a little more than 11 in floating point
        (0.01, 64, 8, 1),  # at least one place
        (100.0, 64, 8, 64),  # no more places than tokens
        (None, 64, 8, None),
    ],
)
def test_expert_capacity(factor, group_size, num_experts, capacity):
    assert expert_capacity(factor, group_size, num_experts) == capacity
