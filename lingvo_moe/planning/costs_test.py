import dataclasses
import re

import pytest

from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.hardware.chips import HARDWARE
from lingvo_moe.moe.dispatch import Einsum
from lingvo_moe.moe.layer import MoEParams
from lingvo_moe.planning.costs import count_costs
from lingvo_moe.sbp.types import Mesh, parse_mesh
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.devices import run_on

DENSE = override(
    get_params("tiny.Dense"),
    [
        "source_vocab_size=700",
        "target_vocab_size=600",
        "input=InputParams(batch_size=8,source_length=16,target_length=16)",
    ],
)
_EXPERTS = MoEParams(num_experts=4, training=Einsum(groups=4))
MOE = dataclasses.replace(DENSE, model=dataclasses.replace(DENSE.model, moe=_EXPERTS))
# Without random numbers, because XLA counts their operations too.
CERTAIN = override(MOE, ["model.dropout_rate=0.0", "model.moe.gating=TopK(k=2)"])
ONE = Mesh(("expert",), (1,))
FOUR = Mesh(("expert",), (4,))


def by_part(costs, field):
    sums = {}
    for item in costs.work:
        sums[item.part] = sums.get(item.part, 0) + getattr(item, field)
    return sums


def test_dense_is_six_a_weight_and_token():
    flops = by_part(count_costs(DENSE, ONE, 4), "flops")
    tokens = 8 * 16
    m, a, h, v = 128, 128, 512, 600
    # Scores and mixing, forward and backward: 3 · 2 products of 2·16·A a token, six attentions.
    scores = 6 * 3 * 2 * 2 * tokens * 16 * a
    assert flops["attention"] == 6 * tokens * (6 * 4 * m * a) + scores
    assert flops["feed_forward"] == 6 * tokens * (4 * 2 * m * h)
    assert flops["softmax"] == 6 * tokens * m * v
    weights = sum(spec.size for _, spec in TranslationTask(DENSE).weights().flatten())
    looked_up = 700 * m  # the source's table takes no product
    total = sum(flops.values()) - scores
    assert total == pytest.approx(6 * (weights - looked_up) * tokens, rel=0.01)  # norms, biases


def test_products_of_the_optimizer():
    muon = override(DENSE, ["optimizer=Muon(schedule=InverseSquareRoot())"])
    weights = TranslationTask(muon).weights().flatten()
    products = sum(muon.optimizer.flops(spec) for _, spec in weights)
    assert by_part(count_costs(muon, ONE, 4), "flops")["optimizer"] == products > 0
    assert by_part(count_costs(DENSE, ONE, 4), "flops")["optimizer"] == 0  # Adafactor


def test_gated_networks_keep_both_products_and_theirs():
    gated = override(DENSE, ["model.activation=SwiGLU()"])
    before, after = (count_costs(p, ONE, 4).memory.activations for p in (DENSE, gated))
    assert after - before == 4 * (4 * 8 * 16) * 2 * 512  # four layers


def test_experts_and_dispatch_by_hand():
    costs = count_costs(MOE, FOUR, 2)
    flops = by_part(costs, "flops")
    # 32 tokens per device in one group: C = ceil(2·32/4) = 16, 4 experts · 1 group · 16 = 64 slots.
    # Two MoE layers.
    assert flops["experts"] == 2 * 3 * 2 * 2 * 64 * 128 * 512
    assert flops["dispatch"] == 2 * 5 * 2 * (32 * 4 * 16) * 128
    (to_all,) = [t for t in costs.transfers if t.kind == "all-to-all"]
    assert (to_all.count, to_all.axes) == (8, ("expert",))
    assert to_all.bytes == 8 * 64 * 128 * 2


def test_a_token_on_few_devices_sends_fewer_rows():
    """16 experts on 4 devices, of which a token uses 2 for its 4 experts."""
    gating = "TopK(k=4,limit=NodeLimited(nodes=4,kept=2))"
    sizes = ["model.moe.num_experts=16"]
    sent = []
    for dispatcher in ("Dropless(groups=4)", "Dropless(groups=4,kept=2)"):
        changes = [f"model.moe.gating={gating}", f"model.moe.training={dispatcher}"]
        params = override(MOE, [*sizes, *changes])
        sent.append(count_costs(params, FOUR, 2).sent["all-to-all"])
    # The lowest rung has room for 1.25 times the copies of 32 tokens, at most one for each device.
    # Two layers; the four experts of a token and their weights only go there, and gradients back.
    row = 2 * (4 * 128 * 2 + 2 * (2 * 4) * 4)
    assert sent == [4 * 32 * row, 1.25 * (2 * 32) * row]


def test_buffers_without_a_capacity_have_a_place_for_each_token():
    of_all, none = (
        count_costs(
            override(MOE, [f"model.moe.training=Gather(groups=4,capacity_factor={f}"]), FOUR, 2
        )
        for f in ("4.0)", "None)")
    )
    assert none == of_all


@pytest.mark.parametrize(("option", "networks"), [("Gated()", 1), ("AlwaysOn(experts=3)", 3)])
def test_shared_networks_take_every_token(option, networks):
    """As much work as so many dense layers; a token's choices cost what they did."""
    with_shared = override(MOE, [f"model.moe.shared={option}"])
    before, after = (by_part(count_costs(p, FOUR, 2), "flops") for p in (MOE, with_shared))
    # Of four layers two are dense.
    assert after["feed_forward"] == (1 + networks) * before["feed_forward"]
    assert after["experts"] == before["experts"]


def test_gradients_of_all_but_experts_are_summed():
    costs = count_costs(MOE, FOUR, 2)
    (reduce,) = [t for t in costs.transfers if t.kind == "all-reduce"]
    specs = dict(TranslationTask(MOE).weights().flatten())
    common = sum(spec.size for spec in specs.values() if "E" not in spec.dims)
    # The target's table has two gradients, of its use as embedding and as softmax.
    assert (reduce.bytes, reduce.axes) == (4 * (common + 600 * 128), ("expert",))
    experts = 2 * 4 * 2 * 128 * 512
    assert costs.memory.weights == 4 * (common + experts / 4)
    assert costs.parameters == common + experts


def test_gradients_of_experts_on_several_devices_are_summed():
    """Twelve slots of six experts, each twice: only the experts 1 and 4 are on two devices."""

    def sums(policy):
        changes = ["model.moe.num_experts=6", f"model.moe.training={policy}"]
        return count_costs(override(MOE, changes), FOUR, 4).sent["all-reduce"]

    more = sums("VExperts(devices=4,slots_per_device=3,groups=4)") - sums("Gather(groups=4)")
    layers, experts = 2, 2  # every second layer of two and two
    assert more == layers * experts * 2 * 128 * 512 * 4


@pytest.mark.parametrize("batches", [1, 2])
def test_frozen_weights_have_no_gradient(batches):
    frozen = "optimizer.rate_factors=(('encoder/|embedding',0),)"
    texts = [f"train.micro_batches={batches}"]
    whole, part = (count_costs(override(MOE, [*texts, *t]), FOUR, 2) for t in ((), (frozen,)))
    specs = dict(TranslationTask(MOE).weights().flatten())
    moving = [s for path, s in specs.items() if not re.search("encoder/|embedding", path)]
    common, experts = (
        sum(s.size for s in moving if ("E" in s.dims) == own) for own in (False, True)
    )
    (reduce,) = [t for t in part.transfers if t.kind == "all-reduce"]
    assert reduce.bytes == 4 * common  # neither of the two gradients of the target's table
    assert part.memory.gradients == batches * 4 * (common + experts / 4)
    assert part.memory.optimizer < whole.memory.optimizer
    assert part.memory.weights == whole.memory.weights
    # Weight, gradient and update of the optimizer are read and written eight times.
    assert by_part(part, "bytes")["optimizer"] == 8 * 4 * (common + experts / 4)


def test_rematerialisation_trades_work_for_memory():
    kept = count_costs(MOE, FOUR, 2)
    again = count_costs(override(MOE, ["model.remat=True"]), FOUR, 2)
    assert by_part(again, "flops")["experts"] == by_part(kept, "flops")["experts"] * 4 / 3
    assert again.memory.activations < kept.memory.activations
    assert [t.count for t in again.transfers if t.kind == "all-to-all"] == [12]


def costs_on_tpu_v3(name, mesh):
    params = get_params(name)
    wire = HARDWARE["tpu_v3"].wire_bytes[params.activation_dtype]
    return count_costs(params, parse_mesh(mesh or f"expert:{params.model.moe.num_experts}"), wire)


# GB of one core of TPU v3 by libtpu: memory and bytes sent.
COMPILED = [
    ("m4.MoE128E12L", "", 7.29, 2.746),
    ("m4.MoE512E12L", "", 4.64, 1.854),
    ("m4.MoE2048E12L", "", 4.78, 1.912),
    ("m4.MoE128E36L", "", 13.59, 7.185),
    ("m4.MoE512E36L", "", 10.98, 4.510),
    ("m4.MoE2048E36L", "", 11.21, 4.684),
    ("m4.MoE2048E60L", "", 14.49, 4.676),
    ("m4.T96L", "data:512,model:4", 9.66, 23.429),
    ("m4.T96L", "data:1024,model:2", None, 15.239),
    ("m4.Bilingual", "data:128", 3.85, 1.634),
]


@pytest.mark.parametrize(("name", "mesh", "memory", "sent"), COMPILED)
def test_memory_and_bytes_are_those_of_the_compiler(name, mesh, memory, sent):
    """Memory is at most 1.15 times our count: T96L; 1.11 without tensor parallelism."""
    costs = costs_on_tpu_v3(name, mesh)
    assert sum(t.bytes for t in costs.transfers) / 1e9 == pytest.approx(sent, rel=0.003)
    if memory:
        most = 1.16 if "model" in mesh else 1.12
        assert 1.0 <= memory / (costs.memory.total / 1e9) <= most


def test_micro_batches_shrink_activations():
    gather = "model.moe.training=Gather()"
    whole = count_costs(override(MOE, [gather]), FOUR, 2)
    parts = count_costs(override(MOE, [gather, "train.micro_batches=2"]), FOUR, 2)
    assert parts.memory.activations == whole.memory.activations / 2
    assert parts.flops == whole.flops


def test_micro_batches_shrink_the_capacity():
    """With Einsum a token has E · C one-hot numbers, and C is of a micro-batch's tokens."""
    whole, parts = (
        by_part(count_costs(override(MOE, [f"train.micro_batches={n}"]), FOUR, 2), "flops")
        for n in (1, 2)
    )
    assert parts["dispatch"] == whole["dispatch"] / 2
    assert parts["experts"] == whole["experts"]


def test_gradients_stay_partial_across_micro_batches_or_take_less_memory():
    sharding = "ShardingParams(state_rules=(('A',('expert',)),), late_sums={})"
    whole = count_costs(override(MOE, [f"sharding={sharding.format(True)}"]), FOUR, 2)
    late, each = (
        count_costs(
            override(MOE, ["train.micro_batches=3", f"sharding={sharding.format(x)}"]), FOUR, 2
        )
        for x in (True, False)
    )
    once, often, one = (
        next(t for t in costs.transfers if (t.part, t.kind) == ("gradients", "all-reduce"))
        for costs in (late, each, whole)
    )
    assert often.bytes == 3 * one.bytes
    assert often.count == 3 * one.count
    # Uses of the target's table add up first.
    assert once.bytes == one.bytes - 4 * 600 * 128
    specs = dict(TranslationTask(MOE).weights().flatten())
    heads = sum(spec.size for spec in specs.values() if "A" in spec.dims)
    # A micro-batch's and their sum.
    assert each.memory.gradients == 2 * whole.memory.gradients == 2 * each.memory.weights
    assert late.memory.gradients - each.memory.gradients == pytest.approx(2 * 4 * heads * 3 / 4)


def test_tensor_parallelism():
    one, costs = (count_costs(DENSE, m, 4) for m in (ONE, Mesh(("model",), (2,))))
    whole, half = (by_part(c, "flops") for c in (one, costs))
    assert half == {part: flops / 2 for part, flops in whole.items()}
    (reduce,) = [t for t in costs.transfers if t.part == "tensor_parallel"]
    # An attention's sums: the output forward; backward the gradient by way of queries, keys and
    # values, or where those read something else, two. A feed-forward layer's: one each way. Two
    # lookups and the softmax's gradient.
    sums = 2 * (2 + 2) + 2 * (2 + 3 + 2) + 2 + 1
    assert (reduce.count, reduce.bytes) == (sums, sums * 4 * 128 * 128)


@pytest.mark.slow
def test_flops_against_xla():
    flops = run_on(1, __file__)
    # XLA also counts what is no matrix product: softmax, norms, the optimizer.
    assert 1.0 < flops / count_costs(CERTAIN, ONE, 4).flops < 1.15


def test_without_a_capacity_loads_are_taken_as_even():
    top_4 = "model.moe.gating=TopK(k=4)"
    free, limited = (
        override(get_params("tiny.MoE"), [top_4, f"model.moe.training={training}"])
        for training in ("Ragged()", "Gather(capacity_factor=4.0)")
    )
    one = parse_mesh("data:1")
    assert count_costs(free, one, 4) == count_costs(limited, one, 4)


if __name__ == "__main__":
    import jax

    from lingvo_moe.planning.tpu_compile import lower_for_devices

    one = parse_mesh("expert:1")
    print(lower_for_devices(CERTAIN, one, jax.devices()[:1]).cost_analysis()["flops"])
