import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.jobs.training import train_step
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.logdirs import SMALLEST_DENSE
from lingvo_moe.testing.tiny_world import SHRINK

IDS = np.array([[4, 5, 6, 2]], np.int32)


def batch():
    ones = np.ones_like(IDS)
    names = ("source_ids", "target_inputs", "target_ids")
    feed = NestedMap(dict.fromkeys(names, IDS))
    feed.update(source_segment_ids=ones, target_segment_ids=ones)
    feed.update(source_pair_ids=0 * ones, target_pair_ids=0 * ones)
    return feed


def test_translations_follow_the_weights():
    task = TranslationTask(override(get_params("tiny.Dense"), SMALLEST_DENSE))
    runtime = Local(task, train_step(task))

    def score():
        return float(runtime.translate(IDS, np.array([4], np.int32)).scores[0, 0])

    runtime.initialize(0)
    state, first = runtime.state(), score()
    runtime.train(batch())
    trained = score()
    runtime.initialize(1)
    anew = score()
    assert len({first, trained, anew}) == 3
    runtime.restore(state)
    assert score() == first


@pytest.mark.slow
def test_programs_without_gradients_are_freed_with_the_runtime():
    """TensorFlow keeps a graph with a custom gradient, such as that of a gating, for ever."""
    runtime = Local(TranslationTask(override(get_params("tiny.MoE"), SHRINK)))
    runtime.initialize(0)
    known = {id(graph) for graph in _graphs()}
    lengths = np.array([4], np.int32)
    runtime.translate(IDS, lengths)
    runtime.evaluate(batch())
    runtime.score(IDS, lengths, IDS, lengths)
    runtime.routes(IDS, lengths, IDS, lengths, 0 * lengths)
    traced = [weakref.ref(graph) for graph in _graphs() if id(graph) not in known]
    assert len(traced) >= 4
    del runtime
    gc.collect()
    assert not [graph() for graph in traced if graph() is not None]


def _graphs():
    return [thing for thing in gc.get_objects() if isinstance(thing, tf.Graph)]
