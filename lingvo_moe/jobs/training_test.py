import functools
import os
import re
import signal
import threading
import types

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.data import virtual_shard
from lingvo_moe.data.pipeline import Prefetcher, TrainInput, eval_batches
from lingvo_moe.jobs import training
from lingvo_moe.jobs.training import summarize, train_model, train_step
from lingvo_moe.moe import ragged
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.runtimes.local import Local
from lingvo_moe.sbp.types import parse_mesh
from lingvo_moe.system import lock
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.logdirs import training_job
from lingvo_moe.testing.tiny_world import SHRINK, dataset, without
from lingvo_moe.training.signals import Stopped

# One layer a side, which has experts.
SMALL = ("model.num_encoder_layers=1", "model.num_decoder_layers=1", "model.moe.every_n=1")
EVERY = ("train.log_every=2", "train.eval_every=4", "train.checkpoint_every=4")


def _train(logdir, *overrides, **fields):
    small = () if "model" in fields else SMALL
    return train_model(training_job(logdir, *EVERY, *small, *overrides, **fields))


def _theta(logdir, step):
    tensors = ModelDir.open(logdir).read_checkpoint(step).tensors
    return {name: value for name, value in tensors.items() if name.startswith("theta/")}


_compiled = functools.cache(Local)


def _train_eight_steps(logdir, **fields):
    """A run with all that TensorBoard can show; all these runs share their compiled programs."""

    def make_runtime(task, step):
        runtime = _compiled(task, step)
        runtime.initialize(99)  # nothing is left of the run before
        return runtime

    eight = ("train.max_steps=8", "train.dev_bleu_sentences=4", "input.virtual_shards=2")
    return _train(logdir, *eight, make_runtime=make_runtime, **fields)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of eight steps that nothing interrupts."""
    logdir = tmp_path_factory.mktemp("training") / "whole"
    _train_eight_steps(logdir)
    return logdir


def _assert_same_weights(logdir, whole):
    ours, expected = _theta(logdir, 8), _theta(whole, 8)
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.moe.training=Einsum()"], "groups=1"),
        (["model.moe.training=Ragged()"], "one device"),
        (
            ["model.moe.training=Gather(groups=4)", "model.moe.evaluation=Gather(groups=2)"],
            "evaluation.groups=2",
        ),
        (["model.moe=None", "input.batch_size=6"], "of 4"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path, overrides, message
):
    runtime = types.SimpleNamespace(mesh=parse_mesh("data:2,expert:2"))
    with pytest.raises(ValueError, match=message):
        train_model(training_job(tmp_path / "new", *overrides, make_runtime=lambda *_: runtime))
    assert not (tmp_path / "new").exists()


def test_a_signal_in_mid_run_loses_nothing(tmp_path, monkeypatch, whole):
    """And a run that resumes takes the steps of one that never stopped."""
    next_batch, batches = Prefetcher.next_batch, []

    def interrupt_at_the_third(self):
        batches.append(next_batch(self))
        if len(batches) == 3:  # between two progress lines, with metrics not yet looked at
            os.kill(os.getpid(), signal.SIGTERM)
        return batches[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Prefetcher, "next_batch", interrupt_at_the_third)
        with pytest.raises(Stopped):
            _train_eight_steps(tmp_path)
    assert ModelDir.open(tmp_path).checkpoints.steps() == [3]
    _train_eight_steps(tmp_path)
    _assert_same_weights(tmp_path, whole)


@functools.cache
def _steps(*overrides):
    """Loss and norm of the gradient in each of three steps, [3, 2].

    Nothing is random; there is no capacity and no balance loss, which see a group.
    """
    exact = (
        *("model.dropout_rate=0.0", "model.moe.gating=TopK(k=2)"),
        *("model.moe.training.capacity_factor=None", "model.moe.gating.balance.weight=0.0"),
    )
    params = override(get_params("tiny.MoE"), [*SHRINK, *SMALL, *exact, *overrides])
    task = TranslationTask(params, tuple(dataset().pairs))
    runtime, batches = Local(task, train_step(task)), TrainInput(dataset(), params.input, seed=1)
    runtime.initialize(1)
    metrics = [runtime.train(batches.next_batch()) for _ in range(3)]
    return np.array([[m.nll / m.tokens, m.grad_norm] for m in metrics])


@pytest.mark.slow
def test_micro_batches_add_up_to_the_whole_batch():
    # Only the order of sums differs.
    np.testing.assert_allclose(_steps("train.micro_batches=4"), _steps(), rtol=1e-5)


@pytest.mark.slow
def test_bfloat16_activations_train_near_float32():
    full, half = _steps(), _steps("activation_dtype=bfloat16")
    # A product is rounded by 2 ** -9 of it, 0.2 %.
    assert np.all(half != full)
    np.testing.assert_allclose(half[:, 0], full[:, 0], rtol=0.005)
    np.testing.assert_allclose(half[:, 1], full[:, 1], rtol=0.05)


@pytest.mark.slow
def test_a_run_says_what_it_will_and_does_learn(tmp_path):
    lines = []
    short = ("train.max_steps=4", "optimizer.schedule.warmup_steps=2", "train.eval_every=1")
    _train(tmp_path, *short, report=lines.append)
    uses = [re.search(r"^step (\d)  dev loss \S+  source use (\S+)$", line) for line in lines]
    assert [(int(use[1]), abs(float(use[2])) < 0.1) for use in uses if use] == [
        (step, True) for step in (1, 2, 3, 4)
    ]
    # At the end, since a model of so many pairs needs more steps to use its sources.
    assert sum(line.startswith("Warning: source use is below ") for line in lines) == 1
    lines.clear()
    _train(tmp_path, *short, "train.source_use_sentences=0", report=lines.append)
    assert lines == ["Resuming from step 4."]


def test_tensorboard_shows_what_people_watch(whole):
    (path,) = (whole / "events").iterdir()
    tags = {
        value.tag
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    layer = "encoder/layer_00"
    wanted = {"loss", "loss/qna-en", "aux_loss", f"load/{layer}/0", f"drop_rate/{layer}"}
    wanted |= {"learning_rate", "grad_norm", "tokens_per_second", "z_loss", f"unused/{layer}"}
    wanted |= {f"importance_max/{layer}", "max_vio/decoder/layer_00", f"capacity/{layer}"}
    wanted |= {"pair_drop_rate/qna-en", f"entropy/{layer}"}
    dev = {"dev/loss", "dev/bleu", "dev/length_ratio/en", "dev/source_use/qna-en"}
    dev |= {f"dev/max_vio/{layer}"}
    assert {f"train/{tag}" for tag in wanted} | dev <= tags


def test_summaries_by_hand():
    # Two steps of 10 and 30 tokens; layer 0 has three experts and layer 1 has two.
    steps = [
        NestedMap(
            tokens=np.float32(tokens),
            nll=np.float32(2 * tokens),
            pair_nll=np.array([2.0 * tokens, 0.0]),
            pair_tokens=np.array([tokens, 0.0]),
            aux_loss=np.float32(1.5 * tokens),
            z_loss=np.float32(4 * tokens),
            num_experts=np.array([3.0, 2.0]) * tokens,
            entropy=np.array([1.0, 0.5]) * tokens,
            unused=np.array([0.0, 1.0]),
            capacity=np.array([7.0, 7.0]) * tokens,
            pair_wanted=np.array([[20.0, 0.0], [30.0, 0.0]]),
            pair_dropped=np.array([[5.0 * dropped, 0.0], [0.0, 0.0]]),
            max_vio=np.array([0.75 if dropped else 0.25, 1.0]),
            load=np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]) * tokens,
            importance=np.array([[0.4, 0.3, 0.3], [0.75, 0.25, 0.0]]) * tokens,
        )
        for tokens, dropped in [(10, True), (30, False)]
    ]
    scalars = summarize(
        NestedMap(steps[0].map(np.add, steps[1]), steps=2), ["a-b", "c-d"], ["x", "y"]
    )
    expected = {
        "loss": 2.0,
        "tokens": 40.0,
        "loss/a-b": 2.0,
        "aux_loss": 1.5,
        "z_loss": 4.0,
        "pair_drop_rate/a-b": 0.05,  # 5 of 2 · (20 + 30) choices
        "drop_rate/x": 0.125,  # 5 of 2 · 20 choices
        "drop_rate/y": 0.0,
        "capacity/x": 7.0,
        "capacity/y": 7.0,
        "entropy/x": 1.0,
        "entropy/y": 0.5,
        "unused/x": 0.0,
        "unused/y": 1.0,
        "max_vio/x": 0.5,  # 0.75 in one step and 0.25 in the other
        "max_vio/y": 1.0,
        "importance_max/x": 1.2,
        "importance_max/y": 1.5,
        "load/x/0": 0.5,
        "load/x/1": 0.25,
        "load/x/2": 0.25,
        "load/y/0": 1.0,
        "load/y/1": 0.0,
    }
    assert scalars == pytest.approx(expected)


@pytest.mark.slow
def test_a_lost_choice_ends_training(tmp_path, monkeypatch):
    """A dispatcher that computes one choice less than it was given, in each of two layers."""
    counted = ragged.lost
    monkeypatch.setattr(ragged, "lost", lambda *args: counted(*args) + 1.0)
    with pytest.raises(RuntimeError, match="of Ragged"):
        _train(tmp_path, "model.moe.training=Ragged()", "train.max_steps=4")


def test_a_shard_damaged_during_training_loses_nothing(tmp_path, monkeypatch, whole):
    """Batches 1 to 3 are good; the thread fails at the fourth, and the same call goes on."""
    next_batch, made = TrainInput.next_batch, []

    def fail(self):
        made.extend([self] * (threading.current_thread() is not threading.main_thread()))
        if len(made) == 4:
            raise OSError("Shard x is damaged.")
        return next_batch(self)

    with monkeypatch.context() as patch:
        patch.setattr(TrainInput, "next_batch", fail)
        with pytest.raises(OSError, match="Shard x"):
            _train_eight_steps(tmp_path)
    assert ModelDir.open(tmp_path).checkpoints.steps() == [3]
    _train_eight_steps(tmp_path)
    _assert_same_weights(tmp_path, whole)


@pytest.mark.slow
def test_an_evaluation_that_is_not_finite_is_a_warning_and_training_goes_on(tmp_path):
    lines = []
    rate = "optimizer=AdamW(schedule=Constant(learning_rate=1e18))"
    often = ("train.max_steps=3", "train.eval_every=1", "train.checkpoint_every=1")
    more = (*often, "train.source_use_sentences=24", "train.skip_limit=9")
    _train(tmp_path, rate, *more, report=lines.append)
    told = [line for line in lines if line.startswith("Warning: the evaluation at step ")]
    assert told[0].endswith("activation_dtype='float32'.")
    assert not any("source use is below" in line for line in lines)


class TestDevPairs:
    """The pairs of the dev loss, the source use and the dev BLEU."""

    def _evaluator(self, logdir, data, *overrides):
        texts = [*SHRINK, *overrides, "train.dev_bleu_sentences=8"]
        model_dir = ModelDir.create(logdir, "tiny.MoE", texts, data)
        runtime = types.SimpleNamespace(translate=None)
        return training._Evaluator(model_dir, data, runtime, None)

    def test_they_are_those_of_training(self, tmp_path):
        pairs = "input.pairs=('qto-en','qta-en')"
        router = "model.moe.router=ByTask(task='source')"
        evaluator = self._evaluator(tmp_path, dataset(), pairs, router)
        assert evaluator._sample.keys() == {("en", "qto"), ("en", "qta")}
        ids = np.unique(np.stack([batch.target_pair_ids for batch in evaluator._dev.sampled]))
        assert ids.tolist() == [0, 2, 3]  # padding, qta-en, qto-en

    def test_without_dev_lines_bleu_cannot_choose(self, tmp_path):
        with pytest.raises(ValueError, match="no dev"):
            self._evaluator(tmp_path, without("dev"), "train.best_by=DevBleu()")

    def test_without_dev_lines_the_last_checkpoint_is_used_with_a_warning(self, tmp_path):
        evaluator = self._evaluator(tmp_path / "dev", dataset())
        assert evaluator.warnings() == []
        evaluator = self._evaluator(tmp_path / "none", without("dev"), "train.patience=3")
        (line,) = evaluator.warnings()
        assert "no dev lines" in line
        assert "patience=3" in line


class TestBadInput:
    """Each ends in a message that says what to do."""

    def test_a_failed_start_leaves_nothing(self, tmp_path, monkeypatch):
        monkeypatch.setattr(virtual_shard, "MOST_SKIPPED", 9)
        lines = []
        with pytest.raises(ValueError, match="not fit"):
            _train(tmp_path / "new", "input.source_length=1", report=lines.append)
        assert "no dev lines" in lines[0]
        assert list(tmp_path.iterdir()) == []

    def test_a_logdir_in_which_another_process_trains(self, whole):
        before = (whole / "model.json").stat().st_mtime_ns
        with lock.hold(whole), pytest.raises(ValueError, match="in use"):
            _train(whole, "train.max_steps=9")
        assert (whole / "model.json").stat().st_mtime_ns == before

    def test_dev_bleu_that_can_never_be_computed(self, tmp_path):
        choice = "model.moe.gating=ExpertChoice()"
        with pytest.raises(ValueError, match="got ExpertChoice"):
            _train(tmp_path / "logdir", "train.dev_bleu_sentences=4", choice)
        assert not (tmp_path / "logdir").exists()

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("train.micro_batches=3", "micro_batches=3"),
            ("optimizer.schedule=Cosine(learning_rate=1.0,total_steps=5)", "total_steps=6"),
            ("optimizer.schedule=Cosine(learning_rate=1.0,warmup_steps=9)", "got 6"),
            ("target_vocab_size=40", "=target_vocab_size="),
            ("model.shared_embedding=True", "--joint_vocab"),
        ],
    )
    def test_params_that_do_not_fit(self, tmp_path, override, message):
        with pytest.raises(ValueError, match=message):
            _train(tmp_path / "logdir", "train.max_steps=6", override)
        assert not (tmp_path / "logdir").exists()


@pytest.mark.slow
def test_the_moving_average_is_what_is_evaluated_decoded_and_exported(tmp_path):
    """Training reports its dev loss. Opened again, the logdir gives it by default."""
    average = ("optimizer.ema_decay=0.9", "train.max_steps=4", "train.eval_every=2")
    result = _train(tmp_path, *average)
    batch = next(eval_batches(dataset(), "dev", ModelDir.open(tmp_path).params.input))

    def nll(checkpoint):
        runtime = Local(model_dir.task)
        runtime.restore(checkpoint.tensors)
        return float(runtime.evaluate(batch).nll)

    model_dir = ModelDir.open(tmp_path)
    training = Local(model_dir.task, train_step(model_dir.task))
    training.restore(model_dir.checkpoints.read(4).tensors)
    average = nll(model_dir.read_checkpoint(4))
    assert average == float(training.evaluate(batch).nll) != nll(model_dir.checkpoints.read(4))
    assert result.step == 4
