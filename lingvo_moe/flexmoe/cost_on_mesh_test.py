"""The cost model's rows and bytes are those of compiled programs, on four and eight devices."""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.flexmoe.placement import Placement, Replace
from lingvo_moe.flexmoe.vexperts import VExperts
from lingvo_moe.hardware.links import Switched, block
from lingvo_moe.megablocks.dropless import Dropless
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.moe.layer import MoE, MoEParams
from lingvo_moe.nn.layer import Context, init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.testing.device_flow import device_flow
from lingvo_moe.testing.devices import run_on
from lingvo_moe.testing.moe_on_mesh import MoeOnMesh
from lingvo_moe.testing.placements import make_cost
from lingvo_moe.training.adamw import AdamW
from lingvo_moe.training.replicas import sum_replicas, tensors_to_move
from lingvo_moe.training.schedules import Constant

PER_DEVICE, EXPERTS, TOKENS, MODEL, HIDDEN = 3, 6, 64, 128, 32
BLOCK = 8  # rows of an expert are padded to; see Dropless
STATS = ("lost", "rung", "device_rows")
GRADIENT = 4 * 2 * MODEL * HIDDEN  # bytes of an expert, which has no bias

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("devices", [4, 8])
def test_rows_and_bytes_are_as_priced(devices):
    """Exact but for 1 %: the numbers of experts and weights beside a token, and small sums."""
    report = run_on(devices, __file__, str(devices))
    assert len(report["steps"]) == 3
    for step in report["steps"]:
        assert step["lost"] == 0
        assert step["rungs"][0] == step["rungs"][1]
        assert step["rows"] == step["priced rows"]
        for part in ("exchange", "synchronise"):
            assert step[part] == pytest.approx(step[f"priced {part}"], rel=0.01)
    assert report["move"] == pytest.approx(report["priced move"], rel=0.01)


def layer(devices, rung=0):
    slots = VExperts(groups=devices, devices=devices, slots_per_device=PER_DEVICE, rung=rung)
    params = MoEParams(num_experts=EXPERTS, gating=TopK(k=1, normalize=False), training=slots)
    return MoE(model_dim=MODEL, hidden_dim=HIDDEN, params=params)


def least_rung(flow):
    """The lowest with room for the busiest pair of devices and the busiest device."""
    devices, pairs = flow.shape[1], flow.sum(axis=0)
    busiest = pairs.sum(axis=0).max()
    np.fill_diagonal(pairs, 0)
    each = Dropless().room(TOKENS / devices, TOKENS)
    rows = Dropless().room(TOKENS, TOKENS * devices)
    fits = np.array(each) >= pairs.max(), np.array(rows) >= busiest
    return int(np.argmax(np.logical_and(*fits)))


def main(devices):
    """Prices of steps with random placements and loads, and of a move, and what programs send."""
    import jax

    from lingvo_moe.runtimes.hlo import collectives, total_bytes
    from lingvo_moe.runtimes.spmd import exchange_program

    wires = Switched(node=devices, local=1.0, remote=1.0)  # a second a byte
    weights = layer(devices).weights()
    memory = AdamW(schedule=Constant(learning_rate=0.1)).slots(weights)
    cost = make_cost(
        devices,
        wires=wires,
        bandwidth=wires.bandwidth(devices),
        tokens_per_second=1.0,
        token_bytes=4 * MODEL,
        gradient_bytes=GRADIENT,
        state_bytes=3 * GRADIENT,
    )
    theta = init_theta(weights, 7)
    theta.gate = tf.eye(MODEL, EXPERTS)
    learned = NestedMap({name: value for name, value in theta.items() if name != "placement"})
    specs = NestedMap({name: value for name, value in weights.items() if name != "placement"})
    steps, rng = [], np.random.default_rng(devices)
    for _ in range(3):
        more = rng.integers(EXPERTS, size=devices * PER_DEVICE - EXPERTS)
        table = rng.permutation(np.append(np.arange(EXPERTS), more))
        placement = Placement(table.reshape(devices, PER_DEVICE), EXPERTS)
        expert = rng.choice(EXPERTS, (devices, TOKENS), p=rng.dirichlet(np.ones(EXPERTS)))
        loads = (expert[..., None] == np.arange(EXPERTS)).sum(axis=1)
        flow, counts = device_flow(loads, placement.counts()), placement.counts()
        values = np.zeros((devices, TOKENS, MODEL), np.float32)
        values[..., :EXPERTS] = 4.0 * np.eye(EXPERTS)[expert]
        on_mesh = MoeOnMesh(specs, learned, values, np.ones((devices, TOKENS), np.int32))
        rung = least_rung(flow)
        program, result = compiled(on_mesh, placement, weights, devices, rung)
        sent = total_bytes(collectives(program.as_text()))
        priced = cost.of_flow(flow, counts)
        rows = -(-flow.sum(axis=1) // BLOCK) * BLOCK
        steps.append(
            {
                "lost": result["lost"],
                "rungs": [rung, result["rung"]],
                "rows": result["device_rows"],
                "priced rows": int(rows.sum(axis=0).max()),
                "exchange": wires.all_to_all_seconds(sent["all-to-all"], block(devices)),
                "priced exchange": float(priced.exchange[0]),
                "synchronise": wires.all_reduce_seconds(sent.get("all-reduce", 0), block(devices)),
                "priced synchronise": float(priced.synchronise[0]),
            }
        )
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("side",))
    held = tensors_to_move("placement", weights, memory).values()
    program = exchange_program(mesh, [jax.sharding.PartitionSpec("side")] * len(held))
    args = [jax.ShapeDtypeStruct((2 * PER_DEVICE, *spec.shape[1:]), "float32") for spec in held]
    text = program.lower(args, np.zeros(2, np.int32), np.zeros(2, bool)).compile().as_text()
    sent = total_bytes(collectives(text))
    assert set(sent) == {"collective-permute"}
    placement = Placement.even(devices, PER_DEVICE, EXPERTS)
    report = {
        "steps": steps,
        "move": sent["collective-permute"],  # a second a byte
        "priced move": cost.adjustment_seconds(
            placement, Replace(0, 2 * PER_DEVICE).apply(placement)
        ),
    }
    print(json.dumps(report))


def compiled(on_mesh, placement, weights, devices, rung):
    """The program of a step's gradients, and its results."""

    def gradients(theta, values, segments):
        # A constant, so that the compiler counts the sums.
        table = NestedMap(placement=tf.constant(placement.slots))
        with tf.GradientTape() as tape:
            tape.watch(values)
            theta.experts.map(tape.watch)
            tokens = Tokens(segments, segments)
            given = NestedMap(theta, **table), values, tokens, Context(tf.constant([1, 2]))
            output = layer(devices, rung).fprop(*given)
            total = tf.reduce_sum(tf.sin(output.outputs))
        experts, by_values = tape.gradient(total, [theta.experts, values])
        summed = sum_replicas(NestedMap(experts=experts), table, weights)
        stats = {name: output.stats[name] for name in STATS}
        return {"values": by_values, **dict(summed.flatten()), **stats}

    names = [name for name in on_mesh.gradients if name not in ("outputs", "gate")]
    program = on_mesh.compile(gradients, [*names, *STATS], {"expert": devices})
    return program, on_mesh.run(program)


if __name__ == "__main__":
    main(int(sys.argv[1]))
