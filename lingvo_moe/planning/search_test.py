"""What the search must find, and that nothing is better."""

import dataclasses
import itertools

import pytest

from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.hardware.chips import HARDWARE
from lingvo_moe.planning.costs import count_costs, estimate
from lingvo_moe.planning.search import (
    HAND,
    ROOM,
    Space,
    Strategy,
    compare_strategies,
    make_mesh,
    price,
    search_strategies,
)
from lingvo_moe.sbp.params import DATA_AND_EXPERT, ShardingParams
from lingvo_moe.sbp.types import piece_shape, type_of
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.small_models import MOE, SMALL

# Cores of the paper's Table 1 (it says nothing of a bilingual baseline); ms of a step and GB sent,
# by the paper's annotation (0: it does not fit) and of the fastest strategy.
CORES = {
    "m4.MoE2048E36L": (2048, (1628, 4.60), (1196, 5.28)),
    "m4.MoE2048E12L": (2048, (454, 1.78), (431, 2.11)),
    "m4.MoE512E36L": (512, (1281, 4.49), (962, 5.11)),
    "m4.MoE512E12L": (512, (374, 1.74), (353, 2.05)),
    "m4.MoE128E36L": (128, (4120, 7.18), (4045, 8.29)),
    "m4.MoE128E12L": (128, (1424, 2.74), (1390, 3.24)),
    "m4.MoE2048E60L": (2048, (2538, 4.54), (2390, 8.19)),
    "m4.T96L": (2048, (0, 9.38), (1988, 17.54)),
    "m4.Bilingual": (16, (1141, 1.63), (1092, 2.38)),
}
FAST = ("m4.MoE128E12L", "m4.T96L", "m4.Bilingual")


@pytest.mark.parametrize(
    "model",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CORES],
)
def test_never_above_the_papers_annotation(model):
    cores, by_hand, fastest = CORES[model]
    found = compare_strategies(get_params(model), HARDWARE["tpu_v3"], cores)
    best, hand = found.best, found.alternatives[HAND]
    assert best.fits
    if hand.fits:
        assert best.seconds <= hand.seconds
        assert best.sent <= hand.sent
    assert found.fastest.seconds <= best.seconds
    if ".MoE" in model:  # expert parallel, a device an expert
        assert str(best.strategy.mesh) == f"expert:{cores}"
    for one, taken in ((hand, by_hand), (found.fastest, fastest)):
        assert (round(1e3 * one.seconds * one.fits), round(one.sent / 1e9, 2)) == taken


def test_tensor_parallel_for_large_feed_forward_layers():
    """Few rows of many weights: columns then rows, one reduction each way."""
    large = ("model.model_dim=8192", "model.hidden_dim=65536", "model.num_heads=64")
    params = override(get_params("tiny.Dense"), [*SMALL, *large, "input.batch_size=16"])
    best = search_strategies(params, HARDWARE["h100"], 8).best
    assert str(best.strategy.mesh) == "model:8"
    assert "hidden" in best.strategy.cut
    # Two feed-forward layers, one sum each way, of [16·48, 8192] and [16·32, 8192] float32.
    hidden_alone = Strategy(best.strategy.mesh, ("hidden",))
    (sums,) = price(params, hidden_alone, HARDWARE["h100"]).estimate.costs.transfers
    assert (sums.kind, sums.axes, sums.count) == ("all-reduce", ("model",), 4)
    assert sums.bytes == 2 * 4 * 16 * (48 + 32) * 8192


def test_a_hybrid_where_memory_forces_it():
    """T(96L): data parallel is faster, but 9.3 GB of weights and as much of gradients are not."""
    found = compare_strategies(get_params("m4.T96L"), HARDWARE["tpu_v3"], 2048)
    best, data = found.best, found.alternatives["data parallel"]
    assert data.seconds < best.seconds
    assert not data.fits
    assert best.strategy.mesh.axes == ("data", "model")


def test_memory_decides():
    """Less of it, slower strategies; at last none."""
    params = override(get_params("tiny.MoE"), [*SMALL, *MOE])
    device = HARDWARE["cpu"]
    seconds, memory = [], 1e9
    for _ in range(3):
        best = search_strategies(params, dataclasses.replace(device, memory=memory), 8).best
        assert best.bytes <= ROOM * memory
        seconds.append(best.seconds)
        memory = 0.999 * best.bytes / ROOM
    assert seconds[0] < seconds[1] < seconds[2]
    with pytest.raises(ValueError, match="No strategy"):
        search_strategies(params, dataclasses.replace(device, memory=memory), 8)


def every_strategy(params, devices):
    """(seconds, bytes, bytes sent) of all there are, by the rules and the counts of plans alone."""
    task = TranslationTask(params)
    specs = [spec for _, spec in task.weights().flatten()]
    specs += [spec for _, spec in params.optimizer.slots(task.weights()).flatten()]
    sizes = [n for n in range(1, devices + 1) if devices % n == 0]
    for data, expert, model in itertools.product(sizes, repeat=3):
        if data * expert * model != devices or (expert > 1 and not params.model.moe):
            continue
        mesh = make_mesh(data, expert, model)
        flags = itertools.product((False, True), repeat=9)
        for heads, hidden, vocabulary, a, v, gate, zero, remat, late in flags:
            cuts = "AN" * heads + "H" * hidden + "V" * vocabulary
            if (model > 1) != bool(cuts) or ((a or v or gate) and expert == 1):
                continue
            if (zero and data == 1) or (late and params.train.micro_batches == 1):
                continue
            rules = (*DATA_AND_EXPERT, *((letter, ("model",)) for letter in cuts))
            state = [("M", ("data",))] * zero
            for letter, spread in (("A", a), ("V", v), ("e", gate)):
                inner = ("model",) if letter in cuts else ()
                state += [(letter, ("expert", *inner))] * spread
            sharding = ShardingParams(rules=rules, state_rules=tuple(state), late_sums=late)
            if not runs(params, specs, mesh, sharding):
                continue
            model_params = dataclasses.replace(params.model, remat=remat)
            cut_so = dataclasses.replace(params, sharding=sharding, model=model_params)
            costs = count_costs(cut_so, mesh, 4)
            time = estimate(costs, HARDWARE["cpu"], "float32").step_seconds
            yield time, costs.memory.total, sum(costs.sent.values())


def runs(params, specs, mesh, sharding):
    """Whether all pieces are equal: rows, groups, heads, weights and slots."""
    rules, stored = sharding.compute_rules(mesh), sharding.storage_rules(mesh)
    rows = params.input.batch_size // params.train.micro_batches
    counts = [("B", rows), ("N", params.model.num_heads)]
    if params.model.moe:
        counts += [("G", params.model.moe.training.groups)]
    if any(n % mesh.size(rules.get(letter, ())) for letter, n in counts):
        return False
    for spec in specs:
        try:
            piece_shape(spec.shape, type_of(spec.dims, spec.shape, mesh, stored), mesh)
        except ValueError:
            return False
    return True


PARTS = ("model.moe=None", "train.micro_batches=4")


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(("model.moe=None",), id="dense", marks=pytest.mark.slow),
        pytest.param(MOE, id="moe", marks=pytest.mark.slow),
        pytest.param(PARTS, id="micro-batches"),
    ],
)
def test_equals_exhaustive_search(overrides, monkeypatch):
    params = override(get_params("tiny.MoE"), [*SMALL, *overrides, "model.num_heads=2"])
    # Neither limit changes the strategies, so they are priced once.
    space = Space(params, HARDWARE["cpu"])
    priced = {mesh: list(space.strategies(mesh)) for mesh in space.meshes(4)}
    monkeypatch.setattr(Space, "strategies", lambda _, mesh: priced[mesh])
    everything = list(every_strategy(params, 4))
    assert len(everything) > 20
    limits = sorted({size for _, size, _ in everything})
    for memory in limits[:: max(len(limits) // 20, 1)]:
        device = dataclasses.replace(HARDWARE["cpu"], memory=memory / ROOM * (1 + 1e-9))
        fitting = [(time, sent) for time, size, sent in everything if size <= memory]
        for max_sent in sorted({sent for _, sent in fitting})[::4]:
            found = search_strategies(params, device, 4, max_sent)
            assert found.fastest.seconds == pytest.approx(min(time for time, _ in fitting))
            allowed = [time for time, sent in fitting if sent <= max_sent]
            assert found.best.seconds == pytest.approx(min(allowed))
            assert found.within


def test_a_limit_that_nothing_keeps():
    params = override(get_params("tiny.MoE"), [*SMALL, *MOE])
    device = HARDWARE["cpu"]
    found = search_strategies(params, device, 8, max_sent=0.0)
    assert not found.within
    # The least that is sent is just what can be kept.
    again = search_strategies(params, device, 8, max_sent=found.best.sent)
    assert again.within
    assert again.best == found.best
    assert not search_strategies(params, device, 8, max_sent=0.99 * found.best.sent).within


def test_the_meshes_are_those_that_the_layers_accept():
    # Six experts in eight slots of four devices.
    slots = "model.moe.training=VExperts(devices=4,slots_per_device=2,groups=8)"
    params = override(get_params("tiny.MoE"), [*SMALL, *MOE, "model.moe.num_experts=6", slots])
    space = Space(params, HARDWARE["cpu"])
    assert list(map(str, space.meshes(8))) == [
        *("model:8", "expert:2,model:4", "expert:4,model:2"),
        *("data:2,model:4", "data:2,expert:2,model:2", "data:2,expert:4"),
    ]


@pytest.mark.parametrize(
    ("model", "changes", "devices", "reason"),
    [
        ("tiny.MoE", (*MOE, "model.moe.training=Ragged()"), 8, "one device"),
        ("tiny.Dense", (), 7, "7 devices"),
    ],
)
def test_what_cannot_be_split(model, changes, devices, reason):
    params = override(get_params(model), [*SMALL, *changes])
    with pytest.raises(ValueError, match=reason):
        search_strategies(params, HARDWARE["cpu"], devices)
