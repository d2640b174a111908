import numpy as np

from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.training.ladder import Ladder


def take(ladder, *needs):
    """The rungs that steps were tried on, and the metrics of each step done."""
    tried, done = [], []
    for need in needs:
        # A need may be a list: what the step says on its first try, its second, and so on.
        said = iter(need if isinstance(need, list) else [need] * 9)

        def step(rung, said=said):
            tried.append(rung)
            return NestedMap(needed_rung=np.float32(next(said)), nll=np.float32(7))

        done.append(ladder.take(step))
    return tried, done


def test_a_step_without_room_is_taken_again_where_there_is():
    ladder = Ladder(4)
    tried, done = take(ladder, 0, 2, 2)
    assert tried == [0, 0, 2, 2]
    assert [(m.rung, m.retries, m.nll) for m in done] == [(0, 0, 7), (2, 1, 7), (2, 0, 7)]


def test_and_again_if_that_was_misleading():
    tried, (metrics,) = take(Ladder(4), [1, 3, 3])
    assert tried == [0, 1, 3]
    assert (metrics.rung, metrics.retries) == (3, 2)


def test_it_descends_after_calm_to_the_highest_that_was_needed():
    ladder = Ladder(5, patience=3)
    take(ladder, 4)
    # Three steps below rung 4 in a row; the one that needs it begins the count anew.
    tried, _ = take(ladder, 0, 1, 4, 0, 2, 1, 0)
    assert tried == [4, 4, 4, 4, 4, 4, 2]


def test_a_restored_ladder_goes_on_as_the_old_one():
    old, new = Ladder(5, patience=3), Ladder(5, patience=3)
    take(old, 4, 1, 2)
    new.restore(old.state())
    assert take(new, 0, 0)[0] == take(old, 0, 0)[0] == [4, 2]


def test_fewer_rungs_than_before_go_on_at_the_highest():
    old, new = Ladder(5), Ladder(2)
    take(old, 4, 3)
    new.restore(old.state())
    assert take(new, 0)[0] == [1]
