"""The recipe's choices, on tables of lengths that a reader can add up."""

import dataclasses

import numpy as np
import pytest

from lingvo_moe.config.fields import FROM_DATA
from lingvo_moe.config.params import override, to_fields
from lingvo_moe.config.registry import get_params
from lingvo_moe.data.dataset import Dataset, PairInfo
from lingvo_moe.data.lengths import LONGEST
from lingvo_moe.jobs import training
from lingvo_moe.jobs.hours import steps_in
from lingvo_moe.jobs.source_use import SplitBatches
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.recipe import RULES, Chosen, recipe, registered, to_table
from lingvo_moe.testing.logdirs import training_job
from lingvo_moe.testing.tiny_world import SHRINK, dataset
from lingvo_moe.training.process import ALONE

SIZES = ("source_vocab_size=40", "target_vocab_size=40")


def data(dev=(), **tables):
    """A dataset whose pairs have these tables of lengths, all the same for dev."""
    pairs = []
    for name, table in tables.items():
        lines = sum(row[2] for row in table)
        pair = f"{name}-en"
        info = PairInfo(pair, name, "en", len(pairs), {"train": lines}, {"train": {"x": lines}})
        pairs.append(dataclasses.replace(info, lengths={"train": table, "dev": dev}))
    return dataclasses.replace(dataset(), pairs=tuple(pairs))


def choose(of: Dataset, *texts):
    """Path -> value of small.MoE."""
    params = override(get_params("small.MoE"), [*SIZES, *texts])
    return {one.path: one.value for one in recipe(of, params)}


# 1,000 lines of 20 source and 10 target tokens; LONG has as many tokens in lines of 100 and 50.
SHORT = [[32, 16, 1000, 20_000, 10_000]]
LONG = [[32, 16, 980, 19_600, 9_800], [112, 64, 4, 400, 200]]


def test_rows_hold_the_tokens_that_are_wanted():
    assert choose(data(aa=SHORT))["input.target_length"] == 32
    # 98 % of LONG's target tokens fit rows of 32 and 32. That is enough for a pair, not for all:
    # (9,800 + 10,000) / 20,000 is. The source needs 128 tokens.
    assert choose(data(aa=LONG))["input.target_length"] == 64
    assert choose(data(aa=LONG))["input.source_length"] == 128
    assert choose(data(aa=LONG, bb=SHORT))["input.target_length"] == 32
    # What no row holds does not count.
    endless = [*SHORT, [4096, 4096, 1, 4000, 4000]]
    assert choose(data(aa=endless))["input.target_length"] == 32
    # All that preparation keeps by default fits.
    assert choose(data(aa=[[LONGEST, LONGEST, 1, 380, 380]]))["input.target_length"] == LONGEST
    # The other side is as --set says.
    assert choose(data(aa=LONG), "input.source_length=32")["input.target_length"] == 32


def test_a_side_is_longer_where_that_saves_time():
    # Lines of 42 and 56 tokens, some of 150 and 330. Rows of 192 and 352 would hold 4.6 mean lines,
    # with 256 target tokens. With 256 and 352 it is 6.1 and 341, for 1.06 of the time.
    table = [[64, 64, 10_000, 420_000, 560_000], [160, 336, 100, 15_000, 33_000]]
    chosen = choose(data(aa=table))
    assert (chosen["input.source_length"], chosen["input.target_length"]) == (256, 352)
    assert choose(data(aa=table), "input.source_length=192")["input.target_length"] == 352
    # Rows for sources of 256 tokens, as some lines need, can hold many short targets.
    table = [[64, 16, 10_000, 400_000, 100_000], [256, 32, 200, 50_000, 5_000]]
    assert choose(data(aa=table))["input.target_length"] == 64


def test_rows_need_not_be_longer_than_dev_needs():
    few, many = ([[32, 16, lines, 20 * lines, 10 * lines]] for lines in (99, 100))
    assert choose(data(aa=LONG, dev=few))["input.target_length"] == 64
    assert choose(data(aa=LONG, dev=many))["input.target_length"] == 32
    assert choose(data(aa=SHORT, dev=LONG))["input.target_length"] == 32
    table = recipe(data(aa=LONG, dev=many), override(get_params("small.MoE"), SIZES))
    assert "98.0% of the target tokens fit; 100.0% of dev's" in to_table(table).to_text()


def test_a_step_has_about_as_many_target_tokens():
    # Rows of 32 and 32 would be a quarter padding, so the source gets 64: 2048 / 32 = 64 rows.
    assert choose(data(aa=SHORT))["input.source_length"] == 64
    assert choose(data(aa=SHORT))["input.batch_size"] == 64
    # A row of 32 source tokens has 16 target tokens.
    assert choose(data(aa=SHORT), "input.source_length=32")["input.batch_size"] == 128
    assert choose(data(aa=SHORT), "recipe.batch_tokens=100")["input.batch_size"] == 8
    # Here the target fills a row: 2048 / 64 = 32.
    assert (
        choose(data(aa=LONG), "input.source_length=192", "input.target_length=64")[
            "input.batch_size"
        ]
        == 32
    )


def test_steps_are_epochs_of_the_largest_pair_between_two_limits():
    # 64 rows of 0.95 · 32 / 10 examples are 194.6 of a step. 5 epochs of 100,000 lines are 2,570
    # steps; 146 · 8 = 1,168 are enough for one pair.
    table = [[32, 16, 100_000, 2_000_000, 1_000_000]]
    chosen = choose(data(aa=table))
    assert chosen["train.max_steps"] == 2600
    assert chosen["train.eval_every"] == chosen["train.checkpoint_every"] == 325
    assert choose(data(aa=SHORT))["train.max_steps"] == 1200
    # A step has 0.95 · 2048 tokens without padding.
    most = choose(data(aa=table), "recipe.epochs=100", "recipe.most_tokens=8_000_000")
    assert most["train.max_steps"] == 4200
    assert choose(data(aa=table), "train.max_steps=9")["train.eval_every"] == 2


def test_little_text_needs_more_dropout():
    # 1,200 · 194.6 / 1,000 = 233 epochs.
    assert choose(data(aa=SHORT))["model.dropout_rate"] == 0.3
    # small.MoE has 5.6M weights here, 3.0M without experts.
    assert choose(data(aa=[[32, 16, 200_000, 4_000_000, 2_000_000]]))["model.dropout_rate"] == 0.1
    assert choose(data(aa=[[32, 16, 400_000, 8_000_000, 4_000_000]]))["model.dropout_rate"] == 0.0


def test_targets_that_several_sources_have_count_once():
    """Four pairs of 100,000 lines: with the same targets less text than the model has weights."""
    lines = [[32, 16, 100_000, 2_000_000, 1_000_000]]
    of = data(aa=lines, bb=lines, cc=lines, dd=lines)
    assert choose(of)["model.dropout_rate"] == 0.0
    same = [100 * i for i in range(63)] + [int(63 / 100_000 * 2**48)]
    pairs = tuple(dataclasses.replace(pair, targets=same) for pair in of.pairs)
    assert choose(dataclasses.replace(of, pairs=pairs))["model.dropout_rate"] == 0.1


def test_a_logdir_has_the_numbers_and_the_reasons(tmp_path):
    texts = [*SHRINK[:6], "input.target_length=FROM_DATA", "train.max_steps=FROM_DATA"]
    texts += ["source_vocab_size=FROM_DATA", "target_vocab_size=FROM_DATA"]
    made = ModelDir.for_training(tmp_path / "a", "tiny.MoE", texts, dataset())
    # The vocabularies have 400 and 300 pieces.
    assert (made.params.source_vocab_size, made.params.target_vocab_size) == (416, 320)
    assert [one.path for one in made.chosen] == [
        "source_vocab_size",
        "target_vocab_size",
        "input.target_length",
        "train.max_steps",
    ]
    text = to_table(made.chosen).to_text()
    assert "416    the dataset's 400 source pieces" in text
    made.save()
    assert ModelDir.open(tmp_path / "a").params == made.params
    again = ModelDir.for_training(tmp_path / "a", "tiny.MoE", ["train.max_steps=7"], dataset())
    assert (again.params.train.max_steps, again.chosen) == (7, ())
    given = override(get_params("tiny.MoE"), texts)
    resumed = ModelDir.for_training(tmp_path / "a", "tiny.MoE", (), dataset(), given)
    assert resumed.params == made.params
    with pytest.raises(ValueError, match="a number"):
        made.with_overrides(["input.source_length=FROM_DATA"])
    with pytest.raises(ValueError, match="target_length="):
        ModelDir.for_training(
            tmp_path / "a", "tiny.MoE", ["input.target_length=FROM_DATA"], dataset()
        )


def test_typical_values_where_no_data_are_known():
    assert {rule.path for rule in RULES} == {
        path
        for path, text in to_fields(get_params("small.MoE")).items()
        if text == "FROM_DATA" and not path.startswith("decoding.")  # which dev decides
    }
    assert registered("small.MoE").source_vocab_size == 16_000
    assert registered("small.MoE", ["train.max_steps=5"]).train.max_steps == 5
    assert get_params("tiny.MoE") == registered("tiny.MoE")
    assert get_params("small.MoE").train.max_steps is FROM_DATA


class Timed:
    """A runtime whose steps and evaluations take as long as they say, on a clock of its own. Its
    steps 1 and 5 have two new programs each."""

    def __init__(self, task, step):
        self.clock, self.steps = 0.0, 0

    def batch_rows(self, rows):
        return np.ones([1, rows], bool)

    def initialize(self, seed):
        self.clock += 100.0

    def train(self, batch, compiling):
        self.steps += 1
        if self.steps in (1, 5):
            for _ in range(2):
                with compiling():
                    self.clock += 30.0
        else:
            self.clock += 2.0
        return NestedMap(tokens=1.0, skipped_steps=0.0)

    def evaluate(self, batch):
        self.clock += 3.0
        return NestedMap(nll=1.0)

    def translate(self, source_ids, lengths, tasks, request):
        raise NotImplementedError


def timed(path, monkeypatch, *texts):
    """A new logdir, the number of batches of an evaluation, and a runtime whose clock counts."""
    made = ModelDir.for_training(path, "tiny.MoE", [*SHRINK, *texts], dataset())
    dev = SplitBatches.of(dataset(), made.params.input, made.params.train.source_use_sentences)
    runtime = Timed(None, None)
    monkeypatch.setattr("time.monotonic", lambda: runtime.clock)
    return made, len([*dev.sampled, *dev.foreign, *dev.rest]), runtime


def test_hours_set_the_steps(tmp_path, monkeypatch):
    texts = "train.eval_every=FROM_DATA", "recipe.evaluations=5"
    made, count, runtime = timed(tmp_path, monkeypatch, *texts)
    (chosen,) = steps_in(0.5, made, dataset(), runtime, ALONE)
    # 1,800 s, less five evaluations.
    assert chosen.value == (1800 - 5 * 3 * count) // 2
    assert chosen.reason.startswith("0.5 hours, with 2.00 s a step and ")
    # Two evaluations take a quarter of the time, or little less.
    short = 4 * 2.1 * 3 * count
    steps, evaluations = steps_in(short / 3600, made, dataset(), runtime, ALONE)
    assert evaluations[:2] == ("recipe.evaluations", 2)
    assert steps.value == int((short - 2 * 3 * count) / 2)
    assert "about 218 steps" in steps.reason  # 146 · 4^0.29
    fixed = ModelDir.for_training(tmp_path, "tiny.MoE", [*SHRINK, "train.eval_every=10"], dataset())
    (chosen,) = steps_in(0.5, fixed, dataset(), runtime, ALONE)
    assert chosen.value == int(1800 / (2 + 3 * count / 10))


def test_hours_include_the_translations_of_evaluations(tmp_path, monkeypatch):
    texts = "train.eval_every=10", "train.dev_bleu_sentences=6"
    made, count, runtime = timed(tmp_path, monkeypatch, *texts)

    def translate(translator, sample, fits):
        runtime.clock += 5.0 * sum(len(sources) for sources, _ in sample.values())

    monkeypatch.setattr("lingvo_moe.jobs.hours.translate_and_fit", translate)
    monkeypatch.setattr("lingvo_moe.jobs.hours._TRANSLATED", 4)  # of the six
    (chosen,) = steps_in(0.5, made, dataset(), runtime, ALONE)
    assert chosen.value == int(1800 / (2 + (3 * count + 6 * 5) / 10))


def test_hours_are_for_a_new_logdir(tmp_path, monkeypatch):
    """A resumed run keeps its steps."""
    trained = []
    chosen = iter([[Chosen("train.max_steps", 7, "hours")]])
    monkeypatch.setattr(training, "steps_in", lambda *_: next(chosen))
    monkeypatch.setattr(training, "run_training", lambda model_dir, *_: trained.append(model_dir))
    lines = []
    fields = {"make_runtime": lambda *_: None, "hours": 0.5, "report": lines.append}
    job = training_job(tmp_path, **fields)
    texts = [text for text in job.overrides if "max_steps" not in text]
    job = dataclasses.replace(job, overrides=texts)
    training.train_model(job)
    trained[0].save()
    training.train_model(job)
    assert "max_steps=7 stays" in lines[-1]
    assert [made.params.train.max_steps for made in trained] == [7, 7]
