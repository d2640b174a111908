"""A run of learning.py with an engine whose figures are known."""

import gzip
import json

import numpy as np
import pytest

from experiments.learning_run import is_made, make
from lingvo_moe.config.params import to_fields
from lingvo_moe.data.pipeline import InputParams
from lingvo_moe.data.vocabulary import EOS
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.testing import tiny_world


class _Engine:
    """A dev loss of 3 - steps/100, and 1 more with the source of another sentence."""

    def __init__(self, dataset):
        self.about = {"device": "none"}
        self._pairs, self._steps = len(dataset.pairs), 0
        dev = (e for pair in dataset.pairs for e in dataset.examples("dev", pair.name))
        self._known = {(tuple(e.source), tuple(e.target)) for e in dev}

    def initialize(self, seed):
        self._steps = 0

    def train(self, batches):
        self._steps += len(batches)
        return float(sum((batch.target_segment_ids > 0).sum() for batch in batches))

    def evaluate(self, batch):
        nll, tokens = np.zeros(self._pairs), np.zeros(self._pairs)
        for source, sources, target, targets, pairs in zip(
            batch.source_ids,
            batch.source_segment_ids,
            batch.target_ids,
            batch.target_segment_ids,
            batch.target_pair_ids,
            strict=True,
        ):
            for segment in set(targets[targets > 0]):
                mine = targets == segment
                example = tuple(source[sources == segment]), tuple(target[mine])
                loss = 3 - self._steps / 100 + (example not in self._known)
                nll[pairs[mine][0]] += loss * mine.sum()
                tokens[pairs[mine][0]] += mine.sum()
        return NestedMap(nll=nll.sum(), tokens=tokens.sum(), pair_nll=nll, pair_tokens=tokens)

    def state(self):
        return {"theta/steps": np.float32(self._steps)}

    def restore(self, state):
        self._steps = float(state["theta/steps"])

    def search(self, name, ids, lengths):
        return [[5, 6, EOS] for _ in ids]


@pytest.fixture
def run(tmp_path):
    dataset = tiny_world.dataset()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tiny").symlink_to(dataset.directory)
    return {
        "name": "study/row.1",
        "data": "tiny",
        "input": to_fields(InputParams(batch_size=4)),
        "seed": 1,
        "steps": 40,
        "eval_every": 10,
        "patience": 2,
        "until_source_use": None,
        "searches": ["greedy"],
        "splits": ["dev"],
    }


def test_results(run, tmp_path):
    dataset = tiny_world.dataset()
    assert not is_made(tmp_path, run)
    said = make(tmp_path, run, _Engine(dataset))
    assert is_made(tmp_path, run)
    assert [step for step, *_ in said["curve"]] == [10, 20, 30, 40]
    losses, uses = zip(*[(loss, use) for *_, loss, use in said["curve"]], strict=True)
    np.testing.assert_allclose(losses, [2.9, 2.8, 2.7, 2.6])
    np.testing.assert_allclose(uses, 1.0, rtol=1e-6)
    assert (said["best_step"], said["dev_loss"]) == (40, pytest.approx(2.6))
    assert said["dev_loss_of_mean"] == pytest.approx(3 - 0.25)  # of 10, 20, 30 and 40 steps
    assert said["pair_dev_loss"] == pytest.approx({p.name: 2.6 for p in dataset.pairs})
    assert said["pair_source_use"] == pytest.approx({p.name: 1.0 for p in dataset.pairs})
    scores = said["scores"]["greedy.dev"]["pairs"]
    assert scores.keys() == {pair.name for pair in dataset.pairs}
    written = gzip.decompress((tmp_path / "runs/study/row.1.greedy.dev.gz").read_bytes())
    lines = sum(pair.examples["dev"] for pair in dataset.pairs)
    assert len(written.decode().split("\n")) == lines
    assert json.loads((tmp_path / "runs/study/row.1.json").read_text())["device"] == "none"
