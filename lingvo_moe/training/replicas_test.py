import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.nn.layer import Constant, WeightSpec
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tables import Fixed, TableSpec
from lingvo_moe.training.adamw import AdamW
from lingvo_moe.training.replicas import (
    copies,
    count_once,
    order_after,
    relocate_experts,
    sum_replicas,
    tensors_to_move,
)
from lingvo_moe.training.schedules import Constant as ConstantRate

# Two experts in four slots, of which the last is empty; beside them a weight without slots.
TABLE = TableSpec((2, 2), Fixed(((0, 1), (0, -1))), "e.", "experts", 2)
WI = WeightSpec((4, 3), Constant(0.0), "EM")
WEIGHTS = NestedMap(
    moe=NestedMap(placement=TABLE, experts=NestedMap(wi=WI)),
    gate=WeightSpec((3,), Constant(0.0), "M"),
)
PLACED = NestedMap(moe=NestedMap(placement=tf.constant([[0, 1], [0, -1]])))
GRADS = NestedMap(
    moe=NestedMap(experts=NestedMap(wi=tf.constant([[1.0] * 3, [2] * 3, [4] * 3, [8] * 3]))),
    gate=tf.constant([7.0, 7, 7]),
)


def test_every_slot_gets_the_sum_of_its_experts_and_an_empty_one_nothing():
    grads = sum_replicas(GRADS, PLACED, WEIGHTS)
    np.testing.assert_array_equal(grads.moe.experts.wi, [[5] * 3, [2] * 3, [5] * 3, [0] * 3])
    np.testing.assert_array_equal(grads.gate, [7, 7, 7])
    once = count_once(grads, PLACED, WEIGHTS)
    np.testing.assert_array_equal(once.moe.experts.wi, [[5] * 3, [2] * 3, [0] * 3, [0] * 3])
    np.testing.assert_array_equal(once.gate, [7, 7, 7])


@pytest.mark.parametrize("seed", range(20))
def test_copies_are_all_moves_at_once(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 12))
    source = rng.permutation(size) if seed % 2 else rng.integers(-1, size, size)
    made = copies(source)
    np.testing.assert_array_equal(order_after(made, size), source)
    assert len(made) <= np.count_nonzero(source != np.arange(size))
    kept = set(source[source >= 0])
    for count in range(len(made)):  # no expert is ever without a slot
        assert kept <= set(order_after(made[:count], size))


def test_optimizers_keep_nothing_of_tables_and_moves_take_their_memory_along():
    memory = AdamW(schedule=ConstantRate(learning_rate=0.1)).slots(WEIGHTS)
    assert sorted(memory) == ["gate", "moe"]
    assert sorted(memory.moe) == ["experts"]
    named = tensors_to_move("moe/placement", WEIGHTS, memory)
    assert sorted(named) == [
        "slots/moe/experts/wi/mean",
        "slots/moe/experts/wi/square",
        "theta/moe/experts/wi",
    ]


@pytest.mark.parametrize("placed", [[[1, 0, 1]], None])
def test_a_checkpoint_of_other_slots_is_laid_out_anew(placed):
    """The model begins with slots 0, 1, 0 and one empty. Saved were 1, 0, 1; or plain experts."""
    rows = np.array([[1.0, 11, 21], [0, 10, 20], [1, 11, 21]])
    saved = {"step": 5, "theta/gate": np.ones(3), "theta/moe/experts/wi": rows}
    if placed is None:
        saved["theta/moe/experts/wi"] = rows[[1, 0]]
    else:
        saved["theta/moe/placement"] = np.array(placed)
    found = relocate_experts(saved, WEIGHTS, NestedMap())
    np.testing.assert_array_equal(found["theta/moe/placement"], [[0, 1], [0, -1]])
    wi = found["theta/moe/experts/wi"]
    assert wi.shape == (4, 3)
    np.testing.assert_array_equal(np.asarray(wi)[:3], [[0, 10, 20], [1, 11, 21], [0, 10, 20]])
    np.testing.assert_array_equal(wi[1:3, 1:2], [[11], [10]])
    assert found["step"] == 5
    assert found["theta/gate"] is saved["theta/gate"]


def test_a_model_without_a_table_gets_each_expert_once():
    rows = np.array([[1.0, 11, 21], [9, 9, 9], [0, 10, 20], [1, 11, 21]])
    saved = {
        "theta/moe/placement": np.array([[1, -1], [0, 1]]),
        "theta/moe/experts/wi": rows,
        "slots/moe/experts/wi/mean": rows + 1,
        "theta/other/experts/wi": rows,
    }
    plain = WeightSpec((2, 3), Constant(0.0), "EM")
    weights = NestedMap(moe=NestedMap(experts=NestedMap(wi=plain)))
    found = relocate_experts(saved, weights, NestedMap())
    np.testing.assert_array_equal(found["theta/moe/experts/wi"], rows[[2, 0]])
    np.testing.assert_array_equal(found["slots/moe/experts/wi/mean"], rows[[2, 0]] + 1)
    assert found["theta/other/experts/wi"] is rows
    assert "theta/moe/placement" not in found
