"""Reports of evaluations and records of routing, made without a model."""

from typing import Any

import numpy as np

from lingvo_moe.evaluation.report import Report
from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.evaluation.scores import PairScore


def make_score(
    pair, train_examples, bleu, baseline_bleu=None, p_value=None, test_examples=100, **given
):
    """The score of a pair; its chrF++ is 10 above BLEU."""
    return PairScore(
        pair=pair,
        train_examples=train_examples,
        test_examples=test_examples,
        bleu=bleu,
        chrf=bleu + 10,
        signature="nrefs:1",
        chrf_signature="nw:2",
        baseline_bleu=baseline_bleu,
        p_value=p_value,
        **given,
    )


def make_report(*scores, **options):
    """A report of these scores."""
    fields: dict[str, Any] = {"model": "tiny.MoE", "checkpoint_step": 500, "split": "test"}
    return Report(pairs=scores, **(fields | options))


SIX = make_report(
    make_score("f-en", 10, 8.0, 2.0, 0.001, test_examples=12),
    make_score("a-en", 9000, 40.0, 41.0, 0.4),
    make_score("c-en", 700, 30.0, 20.0, 0.01),
    make_score("b-en", 700, 32.0, 26.0, 0.2),
    make_score("e-en", 50, 12.0),
    make_score("d-en", 300, 22.0, 10.0, 0.04),
    baseline_model="tiny.Bilingual",
)


def make_record(pair_load=None, pairs=("de-en", "fr-en")):
    """A record of routing; by default of one encoder layer with two experts."""
    load = np.array([[[6.0, 2.0], [1.0, 3.0]]] if pair_load is None else pair_load)
    sides = ["encoder/layer_01", "decoder/layer_01", "decoder/layer_03"]
    return RoutingRecord(
        layers=tuple(sides[: len(load)]),
        pairs=tuple(pairs),
        num_experts=np.full(len(load), load.shape[2]),
        **dict.fromkeys(("pair_load", "pair_first", "pair_confidence"), load),
    )
