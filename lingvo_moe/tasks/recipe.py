"""Params from the data: a value for each one that is FROM_DATA. See docs/explain/recipe.md.

The rules are a list. Each reads the train text's lengths, the params, and what earlier rules have
chosen. They are pure: the same dataset and params give the same values.
"""

import collections
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingvo_moe.config.fields import FROM_DATA
from lingvo_moe.config.params import evolve, override
from lingvo_moe.config.registry import get_params
from lingvo_moe.data.dataset import SIDES, Dataset
from lingvo_moe.data.distinct import estimate, least_of
from lingvo_moe.data.lengths import COLUMNS, LONGEST, amount
from lingvo_moe.nn.layer import count_weights
from lingvo_moe.reporting.table import Table
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.translation import TranslationTask

UNIT = 32  # tokens; of rows
FITTING, FITTING_PAIR = 0.99, 0.98  # shares of the target tokens of all pairs, and of each pair
ENOUGH_DEV = 100  # dev lines of each pair, to judge by them
TARGET_COST = 2.5  # about: time of a target position / time of a source position
FULL = 0.95  # share of the tokens of packed rows that are not padding
SIZE_UNIT = 32  # rows of an embedding table, so that the devices of a mesh can share it
ENOUGH = 8  # times the steps until a model uses its sources: nearly the best dev BLEU
# Epochs of the average line -> dropout: more repeats need more (Sennrich and Zhang 2019,
# arXiv 1905.11901; Araabi and Monz 2020, arXiv 2011.02266). Below 20 epochs a model needs none if
# its dense twin has fewer weights than train has target tokens, where a target that several
# sources share counts once: a model soon knows such targets by heart
# (experiments/results/notes.md).
DROPOUTS = (20.0, 0.3), (0.0, 0.1)


class Chosen(NamedTuple):
    """A value that a rule has chosen, and why."""

    path: str
    value: Any
    reason: str


class Rule(NamedTuple):
    """A rule for one param."""

    path: str  # of the param
    typical: Any  # its value where no data are known, as for plans and lists of models
    # (train text, params with the choices of earlier rules) -> value and reason
    choose: Callable[["TrainText", TranslationParams], tuple[Any, str]]


class TrainText:
    """The train text of the pairs that a model draws."""

    def __init__(self, dataset: Dataset, params: TranslationParams):
        """Reads only dataset.json, of the main dataset and of further corpora."""
        self.dataset = dataset
        self.mixture = params.input.mixture(dataset)
        self.streams = self.mixture.streams
        self.tables = _tables(self.streams, "train")
        # Of the main dataset; further corpora need no dev.
        self.dev_tables = _tables((one for one in self.streams if not one.number), "dev")

    @functools.cached_property
    def shares(self) -> np.ndarray:
        """[P], the probability of drawing each pair at first."""
        return self.mixture.probabilities

    @functools.cached_property
    def mean_tokens(self) -> np.ndarray:
        """The mean number of source and of target tokens of a drawn line."""
        means = [table[:, 3:].sum(axis=0) / max(1, table[:, 2].sum()) for table in self.tables]
        return np.maximum(1.0, self.shares @ np.array(means))

    def of_row(self, row: Sequence[int]) -> np.ndarray:
        """[2], tokens of both sides in a row of these lengths, which ends where a side is full."""
        return self.mean_tokens * np.min(row / self.mean_tokens)

    def different_target_tokens(self) -> int:
        """About the number of target tokens, if texts that several sources have count once."""
        total = 0.0
        by_target = collections.defaultdict(list)
        for stream, table in zip(self.streams, self.tables, strict=True):
            by_target[stream.pair.target].append((stream.pair.targets, table[:, [2, 4]].sum(0)))
        for of_language in by_target.values():
            lines, tokens = np.sum([amounts for _, amounts in of_language], axis=0)
            different = estimate(least_of(found for found, _ in of_language)) or lines
            total += tokens * min(1.0, different / max(1, lines))
        return round(total)

    def step(self, params: TranslationParams) -> tuple[float, np.ndarray]:
        """About: target tokens of a step, padding excluded, and [P], the examples of each pair."""
        row = params.input.source_length, params.input.target_length
        tokens = FULL * params.input.batch_size * self.of_row(row)[1]
        return tokens, self.shares * tokens / self.mean_tokens[1]


def first_steps(pairs: int) -> int:
    """About the steps until a model of so many pairs uses its sources.

    A fit over runs with 1 to 117 pairs of real text: learning_budget_muon.csv.
    """
    return round(146 * pairs**0.29)


def recipe(dataset: Dataset, params: TranslationParams) -> tuple[Chosen, ...]:
    """A value for each param, after `--set`, that is FROM_DATA and has a rule."""
    text, chosen = None, []
    for rule in RULES:
        if _get(params, rule.path) is FROM_DATA:
            text = text or TrainText(dataset, params)
            chosen.append(Chosen(rule.path, *rule.choose(text, params)))
            params = with_values(params, chosen[-1:])
    return tuple(chosen)


def with_values(params: TranslationParams, chosen: Iterable[Chosen]) -> TranslationParams:
    """The params with chosen values."""
    for one in chosen:
        params = evolve(params, one.path, one.value)
    return params


def with_values_of(params: TranslationParams, filled: TranslationParams) -> TranslationParams:
    """The params; those that are FROM_DATA and have a rule are as in `filled`."""
    waiting = (rule.path for rule in RULES if _get(params, rule.path) is FROM_DATA)
    return with_values(params, (Chosen(path, _get(filled, path), "resumed") for path in waiting))


def registered(model: str, overrides: Iterable[str] = ()) -> TranslationParams:
    """The params of a registered model with `--set` texts, and typical values for FROM_DATA."""
    return typical(override(get_params(model), overrides))


def typical(params: TranslationParams) -> TranslationParams:
    """The params with typical values for FROM_DATA, for plans and lists: no data are known."""
    unknown = (rule for rule in RULES if _get(params, rule.path) is FROM_DATA)
    return with_values(params, (Chosen(rule.path, rule.typical, "typical") for rule in unknown))


def check_filled(params: TranslationParams) -> None:
    """Checks that no param waits for data, where there are none. Raises ValueError: one does."""
    if waiting := [rule.path for rule in RULES if _get(params, rule.path) is FROM_DATA]:
        raise ValueError(
            f"{waiting[0]}=FROM_DATA is computed when training begins; give a number here."
        )


def to_table(chosen: Iterable[Chosen]) -> Table:
    """A row for each value of a recipe."""
    rows = [(one.path, str(one.value), one.reason) for one in chosen]
    return Table(("param", "value", "why"), rows, texts=3)


def _get(params: Any, path: str) -> Any:
    return functools.reduce(getattr, path.split("."), params)


def _vocabulary(side: str) -> Rule:
    def choose(text, params):
        size = getattr(text.dataset, f"{side}_vocabulary").size
        return _round_up(size, SIZE_UNIT), f"the dataset's {size:,} {side} pieces"

    return Rule(f"{side}_vocab_size", 16_000, choose)


def _length(side: str, typical: int) -> Rule:
    def choose(text, params):
        """The shortest rows that are long enough for dev, or for train.

        Then one side may be longer, where that saves time for each target token.
        """
        given = [getattr(params.input, f"{one}_length") for one in SIDES]
        options = range(UNIT, LONGEST + 1, UNIT)
        sides = [options if length is FROM_DATA else [length] for length in given]
        every = sorted(itertools.product(*sides), key=sum)
        row = _shortest(every, text.tables)
        # Longer lines than any of dev cost rows of dev's length more than they teach.
        dev = text.dev_tables
        if dev and min(table[:, 2].sum() for table in dev) >= ENOUGH_DEV:
            row = min(row, _shortest(every, dev), key=sum)
        row = _cheapest(every, row, text)
        share, each = _fitting(row, text.tables)
        least = int(np.argmin(each))
        why = f"{share:.1%} of the target tokens fit"
        if len(each) > 1:
            why += f", at least {each[least]:.1%} of a pair ({text.streams[least].name})"
        if share < FITTING and dev:
            why += f"; {_fitting(row, dev)[0]:.1%} of dev's"
        return row[SIDES.index(side)], why

    return Rule(f"input.{side}_length", typical, choose)


def _shortest(rows, tables):
    """The shortest of the rows in which what is wanted fits, or else the one that holds most."""
    shares, of_pairs = zip(*(_fitting(row, tables) for row in rows), strict=True)
    wanted = min(FITTING, max(shares)), np.minimum(FITTING_PAIR, np.max(of_pairs, axis=0))
    found = zip(rows, shares, of_pairs, strict=True)
    enough = (row for row, share, each in found if share >= wanted[0] and np.all(each >= wanted[1]))
    return next(enough, rows[int(np.argmax(shares))])


def _cheapest(every, row, text):
    """The shortest of this row and those with one side longer, of about the least time."""

    def cost(one):
        return (one[0] + TARGET_COST * one[1]) / text.of_row(one)[1]

    sources = [one for one in every if one[0] >= row[0] and one[1] == row[1]]
    targets = [one for one in every if one[0] == row[0] and one[1] > row[1]]
    longer = sorted(sources + targets, key=sum)
    least = min(map(cost, longer))
    return next(one for one in longer if cost(one) <= 1.03 * least)


def _fitting(row, tables):
    """The share of the target tokens that fit a row: of all pairs, and [P] of each."""
    fits = [amount(table, *row).target_tokens for table in tables]
    every = [max(1, table[:, 4].sum()) for table in tables]
    return sum(fits) / sum(every), np.divide(fits, every)


def _tables(streams, split):
    """The table of lengths of each stream; see data/lengths.py."""
    tables = (one.pair.lengths.get(split, ()) for one in streams)
    return [np.array(table, np.int64).reshape(-1, COLUMNS) for table in tables]


def _rows(text, params):
    """A multiple of 8, for meshes."""
    _, of_row = text.of_row((params.input.source_length, params.input.target_length))
    rows = 8 * max(1, round(params.recipe.batch_tokens / of_row / 8))
    return rows, f"about {rows * of_row:,.0f} target tokens a step"


def _max_steps(text, params):
    numbers, pairs = params.recipe, len({one.pair.name for one in text.streams})
    sizes = np.array([one.size for one in text.streams])
    largest = int(np.argmax(sizes * (text.shares > 0)))
    tokens, examples = text.step(params)
    rate = examples[largest] / sizes[largest]  # epochs of a step
    least, most = ENOUGH * first_steps(pairs), numbers.most_tokens / tokens
    steps = _round_up(max(min(numbers.epochs / rate, most), least), 100)
    why = f"{steps * rate:,.1f} epochs of {text.streams[largest].name}, which has most lines"
    if steps * rate < 0.95 * numbers.epochs:
        why += "; recipe.most_tokens allows no more"
    elif least >= numbers.epochs / rate:
        why += "; fewer are too few to learn to translate"
    return steps, why


def _every(text, params):
    count = params.recipe.evaluations
    return math.ceil(params.train.max_steps / count), f"{count} in all"


def _dropout(text, params):
    drawn = text.step(params)[1].sum() * params.train.max_steps
    epochs = drawn / sum(one.size for one in text.streams)
    rate = next(rate for least, rate in DROPOUTS if epochs >= least)
    tokens = text.different_target_tokens()
    dense = evolve(typical(params), "model.moe", None)  # a token uses about as many weights
    weights = count_weights(TranslationTask(dense).weights())
    if rate == DROPOUTS[-1][1] and weights < tokens:
        why = f"{weights:,} weights without experts for {tokens:,} tokens of different targets"
        return 0.0, why
    return rate, f"{epochs:,.1f} epochs of the average line"


def _round_up(number: float, unit: int) -> int:
    return math.ceil(number / unit) * unit


# In this order; a new rule is one entry.
RULES = (
    *map(_vocabulary, SIDES),
    _length("source", 96),
    _length("target", 64),
    Rule("input.batch_size", 32, _rows),
    Rule("train.max_steps", 4000, _max_steps),
    Rule("train.eval_every", 500, _every),
    Rule("train.checkpoint_every", 500, _every),
    Rule("model.dropout_rate", 0.1, _dropout),
)
