"""Source use, with numbers by hand."""

import numpy as np
import pytest

from lingvo_moe.data.dataset import Example
from lingvo_moe.data.pipeline import InputParams, eval_batches
from lingvo_moe.jobs import source_use
from lingvo_moe.jobs.source_use import SourceUse, SplitBatches, exchange_sources, spread
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.testing.tiny_world import dataset


def test_lines_are_spread_evenly():
    assert spread(10, 4) == [0, 2, 5, 7]
    assert spread(3, 8) == [0, 1, 2]
    assert spread(1, 8) == spread(0, 8) == spread(10, 0) == []


@pytest.mark.parametrize(("count", "order"), [(2, "BA"), (3, "BCA"), (4, "CDAB"), (5, "CDEAB")])
def test_no_target_keeps_its_source(count, order):
    examples = [Example(f"{letter}", letter.lower()) for letter in "ABCDE"[:count]]
    exchanged = exchange_sources(examples)
    assert "".join(example.source for example in exchanged) == order
    assert [example.target for example in exchanged] == [example.target for example in examples]


def test_use_is_the_extra_loss_a_token():
    # a-en: (300 - 200) / 100 = 1; b-en: (402 - 400) / 200 = 0.01; all: 102 / 300; c-en has no dev.
    own = NestedMap(pair_nll=np.array([200.0, 400, 0]), pair_tokens=np.array([100.0, 200, 0]))
    foreign = NestedMap(pair_nll=np.array([300.0, 402, 0]), pair_tokens=own.pair_tokens)
    use = SourceUse.of(own, foreign, ["a-en", "b-en", "c-en"])
    assert use.scalars() == pytest.approx(
        {"dev/source_use": 0.34, "dev/source_use/a-en": 1.0, "dev/source_use/b-en": 0.01}
    )
    (line,) = use.warnings()
    assert line.startswith(
        "Warning: source use is below 0.1 nats per token for 1 of 2 pairs (b-en 0.01): "
    )


def test_a_pair_of_few_tokens_gives_no_warning_of_its_own():
    assert SourceUse(0.5, {"a-en": 0.6, "b-en": -0.2}, frozenset({"a-en"})).warnings() == []
    (line,) = SourceUse(0.05, {"b-en": 0.05}, frozenset()).warnings()
    assert "below 0.1 nats per token over all pairs: translations" in line
    (line,) = SourceUse(0.05, {"a-en": -0.001}, frozenset({"a-en"})).warnings()
    assert "(a-en 0.00)" in line


def _examples(batches):
    """(pair, source, target) of every example, in order of the batches."""
    found = []
    for batch in batches:
        for row, segments in enumerate(batch.target_segment_ids):
            for segment in range(1, segments.max() + 1):
                target = segments == segment
                source = batch.source_segment_ids[row] == segment
                (pair,) = set(batch.target_pair_ids[row][target])
                ids = batch.source_ids[row][source], batch.target_ids[row][target]
                found.append((int(pair), *(tuple(x.tolist()) for x in ids)))
    return found


def test_dev_is_cut_in_two_and_sources_are_exchanged_within_a_pair():
    params = InputParams(batch_size=4, source_length=48, target_length=32)
    dev = _examples(eval_batches(dataset(), "dev", params))
    batches = SplitBatches.of(dataset(), params, 60)  # 4 pairs, 15 lines each
    sampled, foreign, rest = map(_examples, batches[:3])
    assert sorted(sampled + rest) == sorted(dev)
    assert len(sampled) == len(foreign) == 60
    for pair in range(4):
        own, other = ([x for x in part if x[0] == pair] for part in (sampled, foreign))
        assert len(own) == 15
        assert sorted(x[1] for x in own) == sorted(x[1] for x in other)
        assert sorted(x[2] for x in own) == sorted(x[2] for x in other)
        assert not set(own) & set(other)
    none = SplitBatches.of(dataset(), params, 0)
    assert (none.sampled, none.foreign) == ([], [])
    assert _examples(none.rest) == dev


def test_each_pair_has_enough_tokens_for_a_warning_of_its_own():
    params = InputParams(batch_size=4, source_length=48, target_length=32)
    sampled = _examples(
        SplitBatches.of(dataset(), params, 4).sampled
    )  # one line of each of 4 pairs
    for pair in range(4):
        tokens = [len(target) for index, _, target in sampled if index == pair]
        assert 150 < sum(tokens) < 300


def test_of_each_pair_there_are_two_lines_at_least(monkeypatch):
    """A source can only be exchanged with another one."""
    monkeypatch.setattr(source_use, "_LEAST_TOKENS", 1)  # as if each line had enough tokens
    params = InputParams(batch_size=4, source_length=48, target_length=32)
    sampled = _examples(SplitBatches.of(dataset(), params, 4).sampled)
    assert sorted(pair for pair, *_ in sampled) == [0, 0, 1, 1, 2, 2, 3, 3]
