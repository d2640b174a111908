"""Runs itself in a process of its own, where JAX has eight virtual devices."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.core.layer import EVALUATION, Context, init_theta
from lingvo_moe.gatings.node_limited import NodeLimited
from lingvo_moe.gatings.on_node import OnNode
from lingvo_moe.gatings.top_k import TopK
from lingvo_moe.layers.dispatch import Einsum, Gather, Ragged
from lingvo_moe.layers.fitted import Fitted
from lingvo_moe.layers.gating_dropout import GatingDropout
from lingvo_moe.layers.local_gather import LocalGather
from lingvo_moe.layers.moe import MoE, MoEParams
from lingvo_moe.layers.tokens import Tokens
from lingvo_moe.layers.vexperts import VExperts
from lingvo_moe.sharding.annotations import parse_mesh
from lingvo_moe.testing.devices import run_on
from lingvo_moe.testing.moe_on_mesh import MoeOnMesh

BATCH, LENGTH, MODEL, EXPERTS = 16, 6, 4, 8
# Mesh, nodes, groups (one a device that has its own tokens), choices of a token.
CASES = (
    ({"expert": 8}, 8, 8, 1),
    ({"data": 2, "expert": 4}, 4, 8, 2),
    ({"data": 2, "expert": 2, "model": 2}, 2, 4, 3),
)
TRAINING = Context(tf.constant([1, 2]))


def layer(nodes, groups, k, dispatcher=None):
    """A local step's layer, with a capacity that drops some choices."""
    dropout = GatingDropout(nodes=nodes)
    params = MoEParams(
        num_experts=EXPERTS,
        num_groups=groups,
        capacity_factor=0.6 * k,
        gating=dropout.gating(TopK(k=k)),
        dispatcher=dispatcher or dropout.dispatcher(Einsum()),
        gating_dropout=dropout,
    )
    return MoE(model_dim=MODEL, hidden_dim=8, params=params)


def inputs():
    rng = np.random.default_rng(5)
    values = rng.normal(size=(BATCH, LENGTH, MODEL)).astype(np.float32)
    return values, (rng.random((BATCH, LENGTH)) < 0.9).astype(np.int32)


def forward(moe, theta, values, segments):
    return {"outputs": moe.fprop(theta, values, Tokens(segments, segments), TRAINING).outputs}


def gradients(moe, theta, values, segments):
    """Outputs, and the gradients of a weighted sum of them."""
    with tf.GradientTape() as tape:
        theta.map(tape.watch)
        tape.watch(values)
        outputs = forward(moe, theta, values, segments)["outputs"]
        total = tf.reduce_sum(outputs * tf.cast(tf.range(MODEL), tf.float32))
    by_theta, by_values = tape.gradient(total, [theta, values])
    return {"outputs": outputs, "values": by_values, **dict(by_theta.flatten())}


def theta():
    return init_theta(layer(*CASES[0][1:]).weights(), 7)


@functools.cache
def expected(case):
    """With the global dispatcher, whose slots are indexed by all experts and groups."""
    values, segments = inputs()
    moe = layer(*CASES[case][1:])
    # Its capacity is not that of a local step, so it has room for all, and the policy drops.
    params = dataclasses.replace(
        moe.params,
        gating=_Bounded(gating=moe.params.gating, room=_capacity(case)),
        capacity_factor=100.0,
        dispatcher=Gather(),
        gating_dropout=None,
    )
    moe = dataclasses.replace(moe, params=params)
    return gradients(moe, theta(), tf.constant(values), segments)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Bounded(OnNode):
    """A policy with a capacity of its own."""

    nodes: int = 1
    room: int

    def route(self, logits, mask, capacity, context, extras):
        del capacity
        return self.gating.route(logits, mask, self.room, context, extras)


def _capacity(case):
    _, _, groups, k = CASES[case]
    return int(np.ceil(round(0.6 * k * BATCH * LENGTH / groups / EXPERTS, 6)))


@functools.cache
def on_eight_devices():
    return run_on(8, __file__)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_numbers_are_those_of_the_global_dispatcher(case):
    values, segments = inputs()
    found = gradients(layer(*CASES[case][1:]), theta(), tf.constant(values), segments)
    tf.nest.map_structure(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5),
        found,
        expected(case),
    )
    moe = layer(*CASES[case][1:])
    output = moe.fprop(theta(), tf.constant(values), Tokens(segments, segments), TRAINING)
    assert 0.01 < output.stats.drop_rate < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(CASES)))
def test_numbers_on_a_mesh_are_those_of_one_device(case):
    results = on_eight_devices()[case]["results"]
    assert set(results) == set(expected(case))
    for name, value in expected(case).items():
        np.testing.assert_allclose(results[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_local_layer_has_no_all_to_all(case):
    report = on_eight_devices()[case]
    assert set(report["forward"]) <= {"all-reduce"}  # of a model axis
    assert set(report["backward"]) == {"all-reduce"}
    assert bool(report["forward"]) == ("model" in CASES[case][0])


def test_gradients_are_those_of_finite_differences():
    """Of the inputs, through the router's weights and the experts of local steps."""
    moe, given = layer(2, 2, 2), theta()
    values, segments = inputs()
    values, segments = tf.constant(values[:2, :4]), tf.constant(segments[:2, :4])

    def objective(values):
        outputs = forward(moe, given, values, segments)["outputs"]
        return tf.reduce_sum(outputs * tf.cast(tf.range(MODEL), tf.float32))

    symbolic, numeric = tf.test.compute_gradient(objective, [values], delta=1e-3)
    np.testing.assert_allclose(symbolic[0], numeric[0], atol=2e-3)
    assert np.abs(symbolic[0]).max() > 0.05


@pytest.mark.parametrize("dispatcher", [Einsum(), Gather(), LocalGather()], ids=str)
def test_dispatchers_with_a_local_one(dispatcher):
    assert GatingDropout(nodes=4).dispatcher(dispatcher) == LocalGather(nodes=4)
    assert GatingDropout(nodes=4).dispatcher(Ragged()) == Ragged()


def test_without_a_capacity_no_choice_is_dropped():
    values, segments = inputs()
    dropout = GatingDropout(nodes=4)
    results = []
    for dispatcher in (Ragged(), LocalGather(nodes=4)):
        moe = layer(4, 8, 2, dispatcher)
        params = dataclasses.replace(moe.params, capacity_factor=None, gating_dropout=dropout)
        moe = dataclasses.replace(moe, params=params)
        results.append(forward(moe, theta(), tf.constant(values), segments)["outputs"])
    np.testing.assert_allclose(*results, atol=1e-5)
    assert np.all(np.any(results[0].numpy()[segments > 0] != 0.0, axis=-1))


def test_evaluation_is_that_of_the_model_without_it():
    values, segments = inputs()
    tokens = Tokens(segments, segments)
    plain = MoEParams(num_experts=EXPERTS, gating=TopK(k=2))
    dropped = dataclasses.replace(plain, num_groups=8, gating_dropout=GatingDropout(nodes=4))
    outputs = [
        MoE(model_dim=MODEL, hidden_dim=8, params=p)
        .fprop(theta(), tf.constant(values), tokens, EVALUATION)
        .outputs
        for p in (plain, dropped)
    ]
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": 6}, r"moe.num_experts=6 cannot be divided over .*nodes=4"),
        ({"decoder_num_experts": 2}, r"moe.decoder_num_experts=2 cannot be divided"),
        ({"num_groups": 2}, r"moe.num_groups=2 cannot be divided .* change one of them"),
        ({"gating": TopK(limit=NodeLimited(nodes=2, kept=1))}, r"one node, .* set limit=None"),
        (
            {"gating": OnNode(gating=TopK(), nodes=2), "dispatcher": LocalGather(nodes=2)},
            r"LocalGather\(nodes=4\) does not fit moe.gating=OnNode\(",
        ),
        ({"dispatcher": Fitted()}, r"no local steps for moe.dispatcher=Fitted.*choose Gather\(\)"),
        (
            {"dispatcher": VExperts(devices=4, slots_per_device=2)},
            r"no local steps for moe.dispatcher=VExperts",
        ),
    ],
)
def test_what_cannot_be_local(changes, message):
    given = {"num_experts": 8, "num_groups": 4, "gating_dropout": GatingDropout(nodes=4)}
    with pytest.raises(ValueError, match=message):
        MoEParams(**{**given, **changes})


def test_a_node_with_too_few_experts_fails_before_any_step():
    given = {"num_experts": 8, "num_groups": 4, "gating_dropout": GatingDropout(nodes=4)}
    layer = MoE(model_dim=4, hidden_dim=8, params=MoEParams(gating=TopK(k=3), **given))
    message = r"local step of GatingDropout\(nodes=4\) .* its node, 2 of 8: k=3 must not exceed"
    with pytest.raises(ValueError, match=message):
        layer.weights()


def test_a_mesh_with_other_nodes_fails():
    with pytest.raises(
        ValueError, match=r"fit the mesh expert:8; set nodes=8, .*num_groups=8, one"
    ):
        GatingDropout(nodes=4).check_pieces(4, 8, 8, parse_mesh("expert:8"))


def main():
    """The results of all tests that need eight devices, as JSON."""
    from lingvo_moe.runtimes.hlo import collectives, count

    on_mesh = MoeOnMesh(layer(*CASES[0][1:]).weights(), theta(), *inputs())

    def compiled(function, results, mesh, moe):
        return on_mesh.compile(functools.partial(function, moe), results, mesh)

    report = []
    for mesh, *rest in CASES:
        program = compiled(gradients, on_mesh.gradients, mesh, layer(*rest))
        forward_only = compiled(forward, ["outputs"], mesh, layer(*rest))
        report.append(
            {
                "forward": count(collectives(forward_only.as_text())),
                "backward": count(collectives(program.as_text())),
                "results": on_mesh.run(program),
            }
        )
    print(json.dumps(report))


if __name__ == "__main__":
    main()
