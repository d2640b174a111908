"""Wrong results of plug-ins: the error names the file, the class and the rule."""

import dataclasses
import random
import types

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.data.cleaning.base import CleaningRule
from lingvo_moe.data.modifiers.base import Body, Modifier, ModifierContext
from lingvo_moe.evaluation.metrics.base import Metric
from lingvo_moe.moe.dispatch import Dispatched, Dispatcher
from lingvo_moe.moe.gatings.base import Gating
from lingvo_moe.moe.gatings.top_2 import Top2
from lingvo_moe.moe.router import Router
from lingvo_moe.nn.layer import EVALUATION
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.training.adamw import AdamW
from lingvo_moe.training.criteria import Criterion
from lingvo_moe.training.schedules import Constant, Schedule


def tensor(dtype, *shape):
    return tf.zeros(shape, dtype)


LOGITS = tf.constant(np.random.default_rng(0).normal(size=(1, 3, 4)), tf.float32)
MASK = tf.ones([1, 3], tf.bool)
SLOTS = NestedMap(m=tensor(tf.float32, 2), v=tensor(tf.float32, 2))
MOVE = tensor(tf.float32, 2), SLOTS, None, None, None, None
VOCABULARY = types.SimpleNamespace(size=9, decode=lambda lines: ["a text"])


FIELDS = {
    AdamW: {"schedule": Constant(learning_rate=1.0)},
    Schedule: {"learning_rate": 1.0},
    Metric: {"column": "own"},
}


def plug_in(base, method, result):
    """An object of a class in another package, whose method returns what `result` does."""
    own = {method: lambda self, *args: result(*args), "__module__": "mine", "name": "own"}
    cls = type("Own", (base,), dict.fromkeys(base.__abstractmethods__) | own)
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)(**FIELDS.get(base, {}))


def route(change):
    """Top2's routing, changed."""

    def result(*args):
        routing = Top2().route(*args)
        return routing._replace(**change(routing))

    return result


@pytest.mark.parametrize(
    ("base", "method", "result", "args", "rule"),
    [
        (Gating, "route", lambda *_: None, (LOGITS, MASK, None, EVALUATION), "a Routing"),
        (
            Gating,
            "route",
            route(lambda r: {"weight": r.weight[..., :1]}),  # another K
            (LOGITS, MASK, None, EVALUATION),
            "a Routing",
        ),
        (
            Gating,
            "route",
            route(lambda r: {"expert": tf.cast(r.expert, tf.int64)}),
            (LOGITS, MASK, None, EVALUATION),
            "expert and position int32",
        ),
        (
            Dispatcher,
            "dispatch",
            lambda *_: Dispatched(tensor(tf.float64, 1, 3, 2), NestedMap()),
            (tensor(tf.float32, 1, 3, 2), None, None, None),
            "of the inputs' shape and dtype",
        ),
        (
            Router,
            "logits",
            lambda *_: tensor(tf.bfloat16, 1, 3, 4),
            (None, tensor(tf.float32, 1, 3, 2), None, EVALUATION),
            "float32 .G, S, E.",
        ),
        (Criterion, "loss", lambda *_: None, ({},), "a number"),
        (AdamW, "update_weight", lambda *_: (tensor(tf.float64, 2), SLOTS), MOVE, "dtype"),
        (AdamW, "update_weight", lambda *_: (tensor(tf.float32, 1), SLOTS), MOVE, "shape"),
        (AdamW, "update_weight", lambda *_: (MOVE[0], NestedMap(m=MOVE[0])), MOVE, "its slots"),
        (AdamW, "weight_slots", lambda *_: NestedMap(m=0.0), (None,), "WeightSpecs by name"),
        (Schedule, "__call__", lambda *_: None, (1.0,), r"float32 \[\]"),
        (Schedule, "__call__", lambda *_: tensor(tf.float32, 1), (1.0,), r"float32 \[\]"),
        (Metric, "score", lambda *_: "0.5", (None,), "a finite number"),
        (CleaningRule, "drops", lambda *_: None, (("a", "b"), ("de", "en")), "True or False"),
        (
            Modifier,
            "apply",
            lambda body, _: Body(body.source, [9]),
            (Body([1], [2]), ModifierContext((VOCABULARY, VOCABULARY), None, random.Random(1))),
            "a Body of ids in the vocabularies",
        ),
    ],
)
def test_a_wrong_result_is_named(base, method, result, args, rule):
    own = plug_in(base, method, result)
    message = rf"^in the plug-in mine: Own\.{method} must return .*{rule}.*; it returned "
    with pytest.raises(ValueError, match=message):
        getattr(own, method)(*args)


def test_experts_that_do_not_exist_end_the_step():
    own = plug_in(Gating, "route", route(lambda r: {"expert": r.expert + 1}))
    step = tf.function(lambda logits: own.route(logits, MASK, None, EVALUATION).expert)
    assert step(tf.constant([[[2.0, 1, 0, -9]] * 3])).shape == (1, 3, 2)  # experts 1 and 2
    message = r"in the plug-in mine: Own\.route must return experts from 0 to 3"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        step(tf.constant([[[0.0, 1, 2, 3]] * 3]))
    compiled = tf.function(step, jit_compile=True)  # XLA leaves the check out
    assert compiled(tf.constant([[[0.0, 1, 2, 3]] * 3])).shape == (1, 3, 2)


def test_right_results_pass_and_numbers_of_numpy_become_pythons():
    own = plug_in(Gating, "route", Top2().route)
    expected, found = (g.route(LOGITS, MASK, None, EVALUATION) for g in (Top2(), own))
    np.testing.assert_array_equal(found.expert, expected.expert)
    assert type(plug_in(Criterion, "loss", lambda _: np.float32(2)).loss({})) is float
    assert plug_in(CleaningRule, "drops", lambda *_: np.True_).drops(("a", "b"), ("c", "d")) is True
