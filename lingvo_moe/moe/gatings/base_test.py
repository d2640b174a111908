import dataclasses

import pytest
import tensorflow as tf

from lingvo_moe.moe.gatings.base import NOTHING, expert_capacity
from lingvo_moe.moe.gatings.switch import Switch
from lingvo_moe.nn.layer import EVALUATION


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrong(Switch):
    """Switch with a changed field of its Routing."""

    field: str
    change: object

    def route(self, *inputs):
        routing = super().route(*inputs)
        return routing._replace(**{self.field: self.change(getattr(routing, self.field))})


@pytest.mark.parametrize(
    ("field", "change", "got"),
    [
        ("expert", lambda x: tf.cast(x, tf.int64), "int64"),
        ("expert", lambda x: x[..., 0], r"\(1, 4\)"),
        ("weight", lambda x: x[..., 0], r"\(1, 4\)"),
    ],
)
def test_a_gating_names_itself_if_its_choices_have_another_form(field, change, got):
    logits, mask = tf.zeros([1, 4, 3]), tf.ones([1, 4], tf.bool)
    with pytest.raises(ValueError, match=rf"base_test.Wrong: .*K\]; got .*{got}"):
        Wrong(field=field, change=change).choose(logits, mask, None, EVALUATION, NOTHING)


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
