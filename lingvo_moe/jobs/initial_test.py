"""Models that start from another: from its weights, as experts, with more languages."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe import api
from lingvo_moe.jobs.initial import initialize
from lingvo_moe.jobs.training import train_model, train_step
from lingvo_moe.nn.layer import EVALUATION, init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.logdirs import random_logdir, training_job
from lingvo_moe.testing.tiny_world import CORPUS, SHRINK, dataset
from lingvo_moe.training.process import ALONE

DENSE = (*SHRINK, "model.moe=None", "model.dropout_rate=0.0")
EXPERTS = "feed_forward/experts"
# Of a few layers, which compile in a moment.
SMALL = (*SHRINK, "model.num_encoder_layers=1", "model.num_decoder_layers=1", "model.moe=None")


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return random_logdir(tmp_path_factory.mktemp("dense") / "logdir", DENSE)


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    return random_logdir(tmp_path_factory.mktemp("moe") / "logdir", SHRINK)


def start(old, *overrides, path="new", data=None):
    """The model, the state it starts with, and what was said of it."""
    texts = [*SHRINK, f"init.logdir={old}", *overrides]
    new = ModelDir.for_training(old / path, "tiny.MoE", texts, data or dataset())
    runtime, lines = Local(new.task, train_step(new.task)), []
    text = initialize(new, runtime, ALONE, lines.append)
    assert text.rstrip() == "".join(lines)
    state = {name: np.asarray(value) for name, value in runtime.state().items()}
    return new, state, text.splitlines()


def stored(old):
    return {name: np.asarray(t) for name, t in old.read_checkpoint().tensors.items()}


def drawn(new):
    """All weights as drawn from the seed."""
    theta = init_theta(new.task.weights(), new.params.train.seed)
    return {f"theta/{path}": value.numpy() for path, value in theta.flatten()}


def logits(model_dir, state):
    """Of real tokens; experts do nothing with padding."""
    weights = {n: tf.constant(v) for n, v in state.items() if n.startswith("theta/")}
    ids = np.random.default_rng(3).integers(4, 300, (3, 11)).astype(np.int32)
    segments = np.ones_like(ids)
    segments[1, 7:] = 0
    tokens = Tokens(ids, segments)
    fprop = model_dir.task.transformer.fprop
    outputs = fprop(NestedMap.unflatten(weights).theta, tokens, tokens, EVALUATION).outputs
    return outputs.numpy()[segments > 0]


class TestUpcycling:
    @pytest.mark.parametrize(
        "override",
        [
            "model.moe.num_experts=8",
            "model.moe.gating=TopK(k=3)",
            "model.scan=True",
            "model.moe.training=VExperts(devices=4,slots_per_device=3)",
            "model.moe.every_n=1",
            "model.moe.shared=Gated()",
        ],
    )
    def test_the_function_is_that_of_the_dense_model(self, dense, override):
        new, state, text = start(dense.path, override)
        np.testing.assert_allclose(logits(new, state), logits(dense, stored(dense)), atol=1e-5)
        assert state["step"] == 0
        assert text[0] == f"Initial weights, from step 1 of {dense.path}:"
        words = [line.split() for line in text]
        name = "encoder/layer_*/feed_forward/experts/wi"
        layers = 2 if override.endswith("every_n=1") else 1
        copied = [name, f"{layers}", f"{layers * 8 * 16 * 32:,}", "8", "copies", "of"]
        assert copied in [line[:6] for line in words]
        gates = "encoder/layer_*/feed_forward/gate"
        assert [gates, f"{layers}", f"{layers * 128}", "drawn"] in words

    @pytest.mark.slow
    def test_a_scan_becomes_layers_and_layers_a_scan(self, dense, tmp_path):
        scan = random_logdir(tmp_path / "scan", (*DENSE, "model.scan=True"))
        expected = logits(scan, stored(scan))
        for override in ("model.scan=False", "model.moe=None"):
            new, state, _ = start(scan.path, override)
            np.testing.assert_allclose(logits(new, state), expected, atol=1e-5)


class TestByName:
    def test_the_same_model_takes_all_to_the_bit(self, moe):
        _, state, text = start(moe.path)
        for name, value in stored(moe).items():
            if name.startswith("theta/"):
                np.testing.assert_array_equal(state[name], value, err_msg=name)
        assert not any(word in "".join(text) for word in ("drawn", "left out", "copies", "differ"))

    def test_another_number_of_experts_is_drawn(self, moe):
        redraw = "init.redraw=('experts/','/gat')"
        _, state, text = start(moe.path, "model.moe.num_experts=4", redraw)
        assert state[f"theta/encoder/layer_01/{EXPERTS}/wi"].shape == (4, 16, 32)
        assert text[-1] == "The models differ in: model.moe.num_experts=4 (before 8)."
        assert [line.split()[0] for line in text if line.endswith("drawn")] == [
            f"{side}/layer_*/feed_forward/{name}"
            for side in ("decoder", "encoder")
            for name in ("experts/wi", "experts/wo", "gate")
        ]

    def test_a_deeper_model_and_weights_that_are_drawn(self, moe):
        deeper = ("model.num_decoder_layers=3", "model.moe.every_n=2")
        new, state, _ = start(moe.path, *deeper, "init.redraw=('gate$','norms')")
        old = stored(moe)
        for path, value in drawn(new).items():
            expected = old.get(path, value)
            if path.endswith("gate") or "/norms/" in path:
                expected = value
            np.testing.assert_array_equal(state[path], expected, err_msg=path)

    def test_experts_in_slots_come_in_order(self, tmp_path):
        vexperts = "model.moe.training=VExperts(devices=4,slots_per_device=2)"
        old = random_logdir(tmp_path / "old", (*SHRINK, vexperts))
        moved, last = stored(old), 7 - np.arange(8)
        for name in moved:  # expert e in slot 7 - e
            if EXPERTS in name:
                moved[name] = moved[name][last]
            if name.endswith("placement"):
                moved[name] = last.reshape(4, 2).astype(np.int32)
        old.checkpoints.save(2, moved)
        new, state, _ = start(old.path, "init.step=2")
        np.testing.assert_allclose(logits(new, state), logits(old, stored(old)), atol=1e-5)


class TestTaskRows:
    def test_rows_follow_their_tasks(self, tmp_path):
        router = "model.moe.router=ByTask(num_tasks=6)"
        old = random_logdir(tmp_path / "old", (*SHRINK, router))
        corpus = {
            split: [(name, *pair) for name in ("qzz-en", "qna-en") for pair in (("a", "b"),)]
            for split in ("train",)
        }
        data = api.prepare(corpus, tmp_path / "data", extend=str(old.path), report=lambda _: None)
        new, state, _ = start(
            old.path, router, "init.relatives=(('qzz','qto'),)", data=data, path="other"
        )
        name = "theta/encoder/layer_01/feed_forward/task_gate"
        table = stored(old)[name]  # qna, qnu, qta, qto
        np.testing.assert_array_equal(state[name][:2], table[[0, 3]])  # qna, qzz
        np.testing.assert_array_equal(state[name][2:], drawn(new)[name][2:])

    def test_a_router_by_something_else(self, moe, tmp_path):
        router = "model.moe.router=ByTask(task='pair',num_tasks=16)"
        start(moe.path, router)  # a router by token has another weight, so the table is drawn
        by_source = "model.moe.router=ByTask(task='source',num_tasks=16)"
        old = random_logdir(tmp_path / "old", (*SHRINK, by_source))
        with pytest.raises(ValueError, match="by the source"):
            start(old.path, router)
        start(old.path, router, "init.redraw=('/task_gate$',)")


def greek(text):
    """The text in another script: a language that no vocabulary here has seen."""
    return text.translate({ord("a") + i: 0x3B1 + i for i in range(24)})


@pytest.fixture(scope="module")
def extended(moe, tmp_path_factory):
    """The dataset and one language more, on both sides, prepared with the vocabularies of moe."""
    lines = {}
    for split in ("train", "dev", "test"):
        sides = [(CORPUS / split / f"qna-en.{s}").read_text().splitlines() for s in ("qna", "en")]
        lines[split] = [("qna-en", *pair) for pair in zip(*sides, strict=True)]
        new = [greek(line) for line in sides[0]]
        lines[split] += [("qgr-en", *pair) for pair in zip(new, sides[1], strict=True)]
        lines[split] += [("en-qgr", *pair) for pair in zip(sides[1], new, strict=True)]
    return api.prepare(
        lines,
        tmp_path_factory.mktemp("extended") / "data",
        extend=str(moe.path),
        new_pieces=60,
        report=lambda _: None,
    )


class TestMoreLanguages:
    ROOM = ("source_vocab_size=520", "target_vocab_size=400")

    def test_old_ids_stay_and_new_pieces_have_new_characters(self, moe, extended):
        for side in ("source", "target"):
            old, new = moe.vocabulary(side), getattr(extended, f"{side}_vocabulary")
            more = new.pieces(range(old.size, new.size))
            assert new.pieces(range(old.size)) == old.pieces(range(old.size))
            if side == "source":
                assert more.pop() == "<2qgr>"
            assert 40 < len(more) <= 60
            known = set("".join(old.pieces(range(old.size))))
            assert all(set(piece) - known for piece in more)
            texts = ["the old king did not see two birds", "mabot grevulcen runared nik belun"]
            assert new.encode(texts) == old.encode(texts)
            (ids,) = new.encode([greek("mabot grevulcen")])
            assert not any(piece.startswith("<0x") for piece in new.pieces(ids))
            assert new.decode([ids]) == [greek("mabot grevulcen")]

    def test_rows_follow_their_pieces(self, moe, extended):
        relatives = "init.relatives=(('qgr','en'),)"
        new, state, text = start(moe.path, *self.ROOM, relatives, data=extended, path="grown")
        old, anew = stored(moe), drawn(new)
        name = "theta/encoder/embedding/table"
        vocabulary, size = moe.vocabulary("source"), moe.vocabulary("source").size
        np.testing.assert_array_equal(state[name][:size], old[name][:size])
        np.testing.assert_array_equal(
            state[name][extended.tags["qgr"]], old[name][vocabulary.tag("en")]
        )
        # A Greek letter was the two bytes of its UTF-8.
        pieces = extended.source_vocabulary.pieces(range(extended.source_vocabulary.size))
        alpha, more = pieces.index("α"), len(pieces) - size
        first, second = (
            vocabulary.pieces(range(size)).index(f"<0x{byte:02X}>") for byte in "α".encode()
        )
        np.testing.assert_allclose(state[name][alpha], (old[name][first] + old[name][second]) / 2)
        np.testing.assert_array_equal(state[name][512:], anew[name][512:])  # room for more
        np.testing.assert_array_equal(state[name][len(pieces) : 512], old[name][len(pieces) :])
        several = sum(len(vocabulary.split(piece)) > 1 for piece in pieces[size:-1])
        assert several > more - 15  # digits and "?" are single bytes
        kept = f"rows {512 - several} kept, {several} means of several, 8 drawn"
        assert kept in "\n".join(text)

    def test_without_a_relative_a_tag_is_the_mean_of_all(self, moe, extended):
        _, state, _ = start(moe.path, *self.ROOM, data=extended, path="grown")
        name = "theta/encoder/embedding/table"
        tags = list(moe.tags.values())
        np.testing.assert_array_equal(
            state[name][extended.tags["qgr"]], stored(moe)[name][tags].mean(axis=0)
        )


WRONG = [
    ("model.model_dim=32", "draw it"),
    ("init.redraw=('gates',)", "'gates' is"),
    ("init.relatives=(('qxx','en'),)", "'qxx' is"),
    ("model.moe.num_experts=16", "num_experts, or"),
    ("init.step=9", "step 9"),
    ("init.logdir=/no/such", "/no/such is"),
]


@pytest.mark.parametrize(("override", "message"), WRONG)
def test_what_does_not_fit(moe, override, message):
    with pytest.raises((ValueError, OSError), match=message):
        start(moe.path, override)


def test_a_bias_for_balance_is_drawn_with_its_router(tmp_path):
    today = (*SHRINK, "model.moe.gating=TopK(k=2,bias=LossFree())")
    old = random_logdir(tmp_path / "old", today)
    few = (*today, "model.moe.num_experts=4")
    with pytest.raises(ValueError, match="num_experts, or"):
        start(old.path, *few, "init.redraw=('experts/','gate$')")
    _, state, _ = start(old.path, *few, "init.redraw=('experts/','/gat')")
    assert state["theta/encoder/layer_01/feed_forward/gating/bias"].shape == (4,)


class TestTraining:
    FROZEN = (  # weight decay would move them too
        "optimizer=AdamW(schedule=Constant(learning_rate=0.1),weight_decay=0.1)",
        "optimizer.rate_factors=(('encoder/',0),('embedding',0.1))",
    )

    @pytest.mark.slow
    def test_a_run_starts_there_and_resumes_by_itself(self, dense, tmp_path):
        lines, logdir = [], tmp_path / "new"

        def run(*overrides, **fields):
            return train_model(
                training_job(logdir, *SMALL, *overrides, report=lines.append, **fields)
            )

        source = f"init.logdir={dense.path}"
        assert run(*self.FROZEN, source).step == 1
        assert (logdir / "init.txt").read_text().rstrip() in lines
        old, new = stored(dense), stored(ModelDir.open(logdir))
        still = [n for n, v in old.items() if n in new and np.array_equal(new[n], v)]
        assert {n for n in still if n.startswith("theta/")} == {
            n for n in old if n.startswith("theta/encoder/") and n in new
        }
        assert not any(name.startswith("slots/encoder/") for name in new)
        lines.clear()
        for texts in ((), (source,)):
            assert run("train.max_steps=2", *texts).step == 2
        assert not any("Initial weights" in line for line in lines)
        with pytest.raises(ValueError, match="was frozen"):
            run("optimizer.rate_factors=()", "train.max_steps=3")
        with pytest.raises(ValueError, match="gives '/other'"):
            run("init.logdir=/other")
