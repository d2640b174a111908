"""Runs itself in processes of their own, where JAX has virtual devices."""

import functools
import json
import re
import sys

import numpy as np
import pytest

from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.decoding.request import Request
from lingvo_moe.decoding.sampling import Sampling
from lingvo_moe.jobs.training import train_step
from lingvo_moe.testing.devices import run_on
from lingvo_moe.testing.training_on_mesh import MESH, TOLERANCE, local, make_batch, make_task, train

SOURCE = np.random.default_rng(8).integers(4, 64, (5, 9)).astype(np.int32)
SOURCE_LENGTHS = np.array([9, 2, 7, 5, 1], np.int32)
SAMPLINGS = Sampling(top_k=3, seed=1), Sampling(temperature=0.5, top_p=0.9)
REQUESTS = (None, *(Request(BeamSearchParams(sampling=one)) for one in SAMPLINGS))

STEPS = 3
# Its random numbers are half of the time to compile; others train with it, and `random_test.py`
# compares the numbers.
NO_DROPOUT = "model.dropout_rate=0.0"


@functools.cache
def fast():
    """Training and evaluation."""
    return run_on(8, __file__, "training")


@functools.cache
def decoded():
    """Translations, scores and routes after the same training."""
    return run_on(8, __file__, "decoding")


def test_initial_weights_are_those_of_one_device():
    _, before, _ = local(STEPS, NO_DROPOUT)
    initial = fast()["initial"]
    assert set(initial) == set(before)
    for name, value in before.items():
        # Box and Muller's sin, cos and log differ by an ulp or two of numbers up to 4.
        np.testing.assert_allclose(initial[name], value, rtol=0, atol=2e-6, err_msg=name)


def test_steps_are_those_of_one_device():
    _, _, losses = local(STEPS, NO_DROPOUT)
    np.testing.assert_allclose(fast()["losses"], losses, rtol=TOLERANCE)


def test_a_step_that_is_not_finite_is_skipped_on_many_devices_as_on_one():
    many = fast()["skipped"]
    runtime, _, _ = local(STEPS, NO_DROPOUT)
    held = {name: value.numpy() for name, value in runtime.state().items()}
    one = _skip(runtime, held, "theta/decoder/embedding/table", make_batch(STEPS))
    runtime.restore(held)
    for report in (one, many):
        assert report == {"skipped": 1, "nll": 0, "steps": 1, "changed": ["step"]}


def test_the_state_lies_in_pieces():
    """Experts in 4 pieces over "expert"; data-parallel weights whole on every device."""
    shapes = fast()["piece_shapes"]
    experts = "encoder/layer_00/feed_forward/experts/wi"
    assert shapes[f"theta/{experts}"] == [8 // 4, 16, 32]
    assert shapes[f"slots/{experts}/full"] == [8 // 4, 16, 32]
    assert shapes["theta/encoder/embedding/table"] == [64, 16]


def test_a_step_exchanges_tokens_and_sums_gradients_and_gathers_nothing():
    """Two MoE layers, each there and back, forward and backward: eight AllToAlls."""
    counts = fast()["collectives"]
    assert counts["all-to-all"] == 8
    assert set(counts) == {"all-to-all", "all-reduce"}


def test_evaluation_is_that_of_one_device():
    runtime, _, _ = local(STEPS, NO_DROPOUT)
    expected = runtime.evaluate(make_batch(99))
    for name in ("nll", "tokens", "pair_nll", "pair_tokens"):
        np.testing.assert_allclose(fast()["evaluation"][name], expected[name], rtol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_translations_are_those_of_one_device(number):
    runtime, _, _ = local(STEPS, NO_DROPOUT)
    expected = runtime.translate(SOURCE, SOURCE_LENGTHS, request=REQUESTS[number])
    ids, lengths, scores = decoded()["translations"][number]
    assert decoded()["programs"] == 2  # both samplings have one
    np.testing.assert_array_equal(lengths, expected.lengths)
    for row, (got, wanted, length) in enumerate(zip(ids, expected.ids, lengths, strict=True)):
        np.testing.assert_array_equal(got[0][: length[0]], wanted[0][: length[0]], str(row))
    np.testing.assert_allclose(scores, expected.scores, rtol=1e-5)


@pytest.mark.slow
def test_a_search_does_not_lay_out_its_weights():
    """The table [64, 16] and a layer's queries, keys and values, each [16, 16]."""
    assert not {"16,64", "16,32", "16,48", "16,3,16"} & set(decoded()["rearranged"])


@pytest.mark.slow
def test_scores_of_given_translations_are_those_of_one_device():
    runtime, _, _ = local(STEPS, NO_DROPOUT)
    expected = runtime.score(SOURCE, SOURCE_LENGTHS, SOURCE, SOURCE_LENGTHS)
    np.testing.assert_allclose(decoded()["scores"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_routes_of_given_translations_are_those_of_one_device():
    runtime, _, _ = local(STEPS, NO_DROPOUT)
    given = SOURCE, SOURCE_LENGTHS, SOURCE, SOURCE_LENGTHS, 0 * SOURCE_LENGTHS
    expected, real = runtime.routes(*given), np.arange(9) < SOURCE_LENGTHS[:, None]
    assert set(decoded()["routes"]) == set(expected) == {"encoder/layer_00", "decoder/layer_00"}
    for layer, tables in expected.items():
        experts, weights = (np.array(table)[:, :9] for table in decoded()["routes"][layer])
        np.testing.assert_allclose(weights[real], tables[1][real], atol=1e-5)
        assert np.array_equal(experts[real], tables[0][real])


def test_a_restored_runtime_takes_the_same_next_step():
    """The state goes out as arrays and into a new runtime piece by piece."""
    assert fast()["resumed"] == fast()["losses"][-1]


def test_the_pieces_alone_are_read():
    assert fast()["read"] == {"theta/encoder/layer_00/feed_forward/experts/wi": [[2, 16, 32]]}


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("devices", "data:2,expert:2 has 4 places and there are 8"),
        ("uneven", "33 elements, .* 2 equal pieces"),
        ("axis", "'pipeline' of the mesh splits nothing"),
    ],
)
def test_errors(case, message):
    assert re.search(message, fast()["errors"][case]), fast()["errors"][case]


def main(part):
    """Trains on a mesh and prints what the tests of a part look at as JSON."""
    from lingvo_moe.runtimes.lowering import Layout
    from lingvo_moe.runtimes.spmd import Spmd
    from lingvo_moe.sbp.types import parse_mesh

    task = make_task([NO_DROPOUT])
    runtime = Spmd(task, train_step(task), Layout(parse_mesh(MESH), task.params.sharding))
    runtime.initialize(3)
    print(json.dumps({"training": _training, "decoding": _decoding}[part](runtime)))


def _training(runtime):
    import jax

    initial = {name: np.asarray(value) for name, value in runtime.state().items()}
    losses = train(runtime, STEPS - 1)
    saved = {name: np.asarray(value) for name, value in runtime.state().items()}
    last = make_batch(STEPS - 1)
    losses.append(_numbers(runtime.train(last)))
    report = {
        "initial": {name: value.tolist() for name, value in initial.items()},
        "losses": losses,
        "piece_shapes": {
            name: list(value.addressable_shards[0].data.shape)
            for name, value in runtime.state().items()
            if isinstance(value, jax.Array)
        },
        "collectives": _collectives(runtime, last),
        "evaluation": {
            n: np.asarray(v).tolist() for n, v in runtime.evaluate(make_batch(99)).items()
        },
        "errors": dict(_errors()),
    }
    watched = {name: _Watched(value) for name, value in saved.items()}
    runtime.restore(watched)
    wi = "theta/encoder/layer_00/feed_forward/experts/wi"
    report["read"] = {wi: [list(shape) for shape in watched[wi].shapes]}
    report["resumed"] = _numbers(runtime.train(last))
    report["skipped"] = _skip(runtime, saved, "theta/decoder/embedding/table", last)
    return report


def _decoding(runtime):
    runtime.translate(SOURCE, SOURCE_LENGTHS)  # with other weights
    train(runtime, STEPS)
    return {
        "translations": [
            [x.tolist() for x in runtime.translate(SOURCE, SOURCE_LENGTHS, request=request)[:3]]
            for request in REQUESTS
        ],
        "programs": sum(name[0][0] == "translate" for name in runtime._programs),
        "rearranged": _rearranged(runtime),
        "scores": runtime.score(SOURCE, SOURCE_LENGTHS, SOURCE, SOURCE_LENGTHS).tolist(),
        "routes": {
            layer: [table.tolist() for table in tables]
            for layer, tables in runtime.routes(*[SOURCE, SOURCE_LENGTHS] * 2).items()
        },
    }


def _skip(runtime, saved, huge, batch):
    """What a step with a huge weight does: metrics, step, tensors that changed, and where."""
    before = saved | {huge: np.full_like(saved[huge], 1e30)}
    runtime.restore(before)
    metrics, after = runtime.train(batch), runtime.state()
    changed = [n for n, v in before.items() if not np.array_equal(v, np.asarray(after[n]))]
    return {
        "skipped": float(metrics.skipped_steps),
        "nll": float(metrics.nll),
        "steps": int(after["step"]) - int(before["step"]),
        "changed": changed,
    }


def _numbers(metrics):
    return [float(metrics.nll), float(metrics.grad_norm)]


def _collectives(runtime, batch):
    """Of the step that the runtime has taken; JAX does not compile it again."""
    from lingvo_moe.runtimes.hlo import collectives, count
    from lingvo_moe.runtimes.lowering import batch_specs

    program = runtime._program(("train", 0), None, batch_specs(batch))
    return count(
        collectives(program.lower(runtime._state, runtime.feed(batch)).compile().as_text())
    )


def _rearranged(runtime):
    """The shapes that the program of a search transposes or joins."""
    named = (program for name, program in runtime._programs.items() if name[0][0] == "translate")
    batch = {"source_ids": np.zeros([8, 16], np.int32), "lengths": np.ones([8], np.int32)}
    lowered = next(named).lower(runtime._laid_out, runtime.feed(batch))
    return re.findall(r"\[([\d,]+)\]\S* (?:transpose|concatenate)\(", lowered.compile().as_text())


class _Watched:
    """An array that remembers the different shapes that were read of it."""

    def __init__(self, array):
        self._array, self.shape, self.dtype, self.shapes = array, array.shape, array.dtype, set()

    def __getitem__(self, index):
        piece = self._array[index]
        self.shapes.add(piece.shape)
        return piece


def _errors():
    from lingvo_moe.runtimes.lowering import Layout
    from lingvo_moe.runtimes.spmd import Spmd
    from lingvo_moe.sbp.types import parse_mesh

    def make(mesh, *overrides):
        task = make_task(overrides)
        return Spmd(task, train_step(task), Layout(parse_mesh(mesh), task.params.sharding))

    cases = {
        "devices": lambda: make("data:2,expert:2"),
        "uneven": lambda: make("expert:4,model:2", "model.hidden_dim=33"),
        "axis": lambda: make("expert:4,pipeline:2"),
    }
    for name, case in cases.items():
        try:
            case()
        except ValueError as error:
            yield name, str(error)


if __name__ == "__main__":
    main(sys.argv[1])
