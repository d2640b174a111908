"""Every registered model: its size, its golden text, and that it can be built."""

import dataclasses
from pathlib import Path

import pytest

from lingvo_moe.config import registry
from lingvo_moe.config.params import from_fields
from lingvo_moe.nn.layer import count_weights
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.recipe import registered
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.golden import to_changes

GOLDEN = Path(__file__).parents[2] / "testdata" / "golden"

# arXiv 2006.16668, Table 1, section 4.2 and Table 3; NLLB-200's from arXiv 2207.04672.
PAPER = {
    "m4.MoE2048E36L": 600e9,
    "m4.MoE2048E12L": 200e9,
    "m4.MoE512E36L": 150e9,
    "m4.MoE512E12L": 50e9,
    "m4.MoE128E36L": 37e9,
    "m4.MoE128E12L": 12.5e9,
    "m4.MoE2048E60L": 1e12,
    "m4.T96L": 2.3e9,
    "m4.Bilingual": 0.4e9,
    "nllb.MoE54B": 54.5e9,
    "nllb.Dense3_3B": 3.3e9,
}


def _count(name):
    return count_weights(TranslationTask(registry.get_params(name)).weights())


@pytest.mark.parametrize("name", sorted(PAPER))
def test_weights_are_within_7_percent_of_the_papers(name):
    assert _count(name) == pytest.approx(PAPER[name], rel=0.07)


def test_weights_of_the_smallest_moe_by_hand():
    # M 1024, H 8192, A = 16 heads of 128 = 2048, E 128, V 64000 and 32000; 6 + 6 layers.
    attention = 4 * 1024 * 2048
    dense = 2 * 1024 * 8192
    moe = 128 * dense + 1024 * 128
    norms = 6 * (2 + 3) * 1024 + 2 * 1024  # a norm a branch, and one a stack
    bias = 2 * 32 * 16
    expected = 96_000 * 1024 + (6 + 12) * attention + 6 * dense + 6 * moe + norms + bias
    assert _count("m4.MoE128E12L") == expected


def test_moe_layers_and_experts_of_the_paper():
    # Table 1: MoE(2048E, 36L) has 36684 experts in all, 18 layers of 2048.
    stack = TranslationTask(registry.get_params("m4.MoE2048E36L")).transformer
    layers = [*stack.encoder.layers.values(), *stack.decoder.layers.values()]
    assert sum(layer.is_moe for layer in layers) == 18


def test_a_dense_twin_lacks_the_experts_alone():
    ours, theirs = registry.get_params("dense.M4_12L"), registry.get_params("m4.MoE128E12L")
    assert ours == dataclasses.replace(theirs, model=dataclasses.replace(theirs.model, moe=None))


def _experts(name):
    """Weights of the experts of the first MoE layer: all of them, and those that a token meets."""
    task = TranslationTask(registered(name))
    layer = task.transformer.encoder.layers["layer_01"].feed_forward
    weights, p = layer.weights(), layer.params
    always = count_weights(weights.shared) if "shared" in weights else 0
    routed = count_weights(weights.experts)
    chosen = getattr(p.gating, "k", 2)
    return routed + always, routed * chosen // p.num_experts + always


@pytest.mark.parametrize(
    ("name", "base"), [("Tiny", "tiny"), ("TinyToday", "tiny"), ("Small", "small")]
)
def test_finer_experts_have_the_weights_and_the_work_of_gshards(name, base):
    assert _experts(f"finegrained.{name}") == _experts(f"{base}.MoE")


@pytest.mark.parametrize(
    ("recipe", "base", "changed"),
    [
        ("switch.Small", "small.MoE", {"gating", "training", "router"}),
        ("nllb.Small", "small.MoE", {"expert"}),
    ],
)
def test_recipes_are_diffs(recipe, base, changed):
    ours, theirs = registry.get_params(recipe), registry.get_params(base)
    moe, base_moe = vars(ours.model.moe), vars(theirs.model.moe)
    assert {name for name in moe if moe[name] != base_moe[name]} == changed
    rest = dataclasses.replace(ours.model, moe=theirs.model.moe)
    assert dataclasses.replace(ours, model=rest) == theirs


@pytest.mark.parametrize("name", registry.all_names())
def test_resolved_params_are_as_committed(name):
    path = GOLDEN / f"{name}.txt"
    assert path.exists(), f"{name} has no golden text; run `make golden`"
    changes = dict(line.split(" : ", 1) for line in path.read_text().splitlines())
    assert to_changes(registry.get_params(name)) == changes, (
        f"the params of {name} have changed; if that is meant, run `make golden` and commit"
    )
    assert from_fields(TranslationParams, changes, name) == registry.get_params(name)


def test_no_golden_text_is_left_over():
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(registry.all_names())
