"""Bilingual baselines: a model for each pair, trained and scored, for comparison.

DIRECTORY/MODEL/PAIR     the logdir of a pair's model
DIRECTORY/data-KEY/PAIR  a pair's data with its own vocabulary; KEY is of the data and the sizes
DIRECTORY/report         their report, which `evaluate` compares with
"""

import dataclasses
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lingvo_moe.data.corpora import write_corpus
from lingvo_moe.data.dataset import FILE as DATASET_FILE
from lingvo_moe.data.dataset import SIDES, SPLITS, Dataset
from lingvo_moe.data.normalization import NORMALIZATIONS
from lingvo_moe.data.prepare import prepare
from lingvo_moe.data.prepare_params import PrepareParams
from lingvo_moe.evaluation.evaluate import IN_OUTPUT, write_report
from lingvo_moe.evaluation.report import REPORT_FILE, Report, load_report
from lingvo_moe.inference.translator import Translator
from lingvo_moe.jobs.evaluation import load_translator, made_from, references_of, translate_split
from lingvo_moe.jobs.floor import train_texts
from lingvo_moe.jobs.training import TrainingJob, run_training, train_step
from lingvo_moe.system import lock
from lingvo_moe.system.files import check_file_name, check_output, new_directory
from lingvo_moe.system.lines import first_of
from lingvo_moe.tasks.model_dir import ModelDir, check_new_logdir
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.translation import TranslationTask

MAKER = "lingvo-moe-baselines"
_ANY_LENGTH = 100_000  # tokens; rows of batches have their own limit
_BY_CHRF = '--set="train.best_by=DevChrf()" --set=train.dev_bleu_sentences=300'


def train_baselines(
    jobs: Sequence[TrainingJob],
    pairs: Sequence[str] = (),
    split: str = "test",
    own_vocabulary: bool = False,
) -> Report:
    """Trains and scores a bilingual model for each pair; the same call resumes.

    With several jobs each pair is trained with the model of each, and the best one on dev, by
    `train.best_by`, is scored. An earlier report of these pairs is replaced.

    Args:
        jobs: what to train; they differ in the model, and their logdir is the DIRECTORY above.
        pairs: to train; () for all with training examples and lines in the split.
        split: to score on, "dev" or "test".
        own_vocabulary: whether each pair has a vocabulary that is trained on its text alone, with
            the model's sizes, instead of that of the dataset.

    Raises:
        ValueError, OSError: an unknown pair, no lines in the split, no dev lines to choose the best
            model by, models whose results on dev cannot be compared, files in DIRECTORY/report that
            this function did not make, a report there with pairs that are not in pairs, a
            vocabulary that cannot be trained, or as `train_model`.
        SystemExit: a signal stopped the training.
    """
    dataset, report, output = jobs[0].dataset, jobs[0].report, jobs[0].logdir / IN_OUTPUT
    check_output(output, MAKER, overwrite=True)
    pairs = list(pairs) or _with_train_lines(jobs[0], report)
    pairs = list(references_of(dataset, split, pairs, report))
    _check_earlier_report(output, pairs)
    for job in jobs:
        check_file_name(job.model, "a bilingual model", "small.Bilingual")
    runs = {pair: [_run(job, pair, own_vocabulary) for job in jobs] for pair in pairs}
    for pair, tried in runs.items():
        _check_comparable(pair, tried)
    found = _train(runs)
    chosen = {pair: _best(pair, tried, found, report) for pair, tried in runs.items()}
    outputs = [
        dataclasses.replace(
            one,
            train_examples=_examples(chosen[one.pair])[one.pair],
            model=chosen[one.pair].model if len(jobs) > 1 else one.model,
        )
        for one in translate_split(_translators(chosen), dataset, split, report)
    ]
    names = ", ".join(job.model for job in jobs)
    with new_directory(output, MAKER, overwrite=True) as directory:
        return write_report(
            outputs,
            directory,
            model=f"best of {names}" if len(jobs) > 1 else names,
            checkpoint_step=None,
            split=split,
            made_from=made_from(dataset),
        )


def _with_train_lines(job: TrainingJob, report) -> list[str]:
    """The pairs with training examples, also in further corpora; `report` takes the others."""
    params = ModelDir.params_for_training(job.logdir, job.model, job.overrides, job.params)
    trained = dataclasses.replace(params.input, pairs=()).mixture(job.dataset).examples
    names = [pair.name for pair in job.dataset.pairs]
    for name in names:
        if name not in trained:
            report(f"{name}: no train lines, skipped")
    return [name for name in names if name in trained]


def _check_earlier_report(output: Path, pairs: Sequence[str]) -> None:
    """Raises ValueError if the report would lose scores of pairs that were trained before."""
    if not (output / REPORT_FILE).exists():
        return
    earlier = [score.pair for score in load_report(output).pairs]
    if lost := [pair for pair in earlier if pair not in pairs]:
        raise ValueError(
            f"{output} has scores of {first_of(lost)}, which would be lost. Name all pairs (those "
            f"that are trained are only scored again), give another --output, or remove {output}. "
            f"lingvo-moe-evaluate takes several --baselines."
        )


def _run(job: TrainingJob, pair: str, own_vocabulary: bool) -> TrainingJob:
    """What trains a pair alone; errors name the pair."""
    logdir = job.logdir / job.model / pair
    check_new_logdir(logdir)
    try:
        texts = [*job.overrides, f"input.pairs={(pair,)!r}"]
        run = dataclasses.replace(job, logdir=logdir, overrides=texts)
        params = ModelDir.params_for_training(logdir, run.model, run.overrides, run.params)
        if own_vocabulary:
            own = _own_data(run, pair, params, job.logdir)
            run = dataclasses.replace(run, dataset=own)
        _model_dir(run).params.input.mixture(run.dataset)
        return run
    except ValueError as error:
        raise ValueError(f"{pair}: {error} Or leave the pair out, with --pairs.") from error


def _own_data(run, pair, params, output) -> Dataset:
    """A dataset of one pair, with vocabularies of its own; made if it is not there."""
    dataset = run.dataset
    wanted = _preparation(dataset, run.model, params)
    key = hashlib.sha256(f"{dataset.sha256} {wanted}".encode()).hexdigest()[:12]
    directory = output / f"data-{key}" / pair
    if not (directory / DATASET_FILE).exists():
        run.report(f"{pair}: a dataset with a vocabulary of its own")
        splits = [split for split in SPLITS if dataset.pair(pair).examples.get(split)]
        with tempfile.TemporaryDirectory(prefix="lingvo_moe_") as scratch:
            corpus = Path(scratch) / "corpus"
            write_corpus(corpus, {split: _texts(dataset, split, pair) for split in splits})
            made = prepare(corpus, directory, wanted, overwrite=True)
        before, after = (of.pair(pair).examples[SPLITS[0]] for of in (dataset, made))
        if after < before:
            run.report(
                f"{pair}: {before - after} of {before} train lines are left out; after "
                f"normalization they repeat others, or sources of dev and test."
            )
    return Dataset.load(directory)


def _preparation(dataset: Dataset, name: str, params: TranslationParams) -> PrepareParams:
    """How a pair of the dataset is prepared for a model.

    Raises:
        ValueError: a vocabulary for both sides would not read sources as they are tested. The
            dataset has train sources only in normalized form.
    """
    rules = [getattr(dataset, f"{side}_vocabulary").normalization for side in SIDES]
    if params.joint_vocab and len(set(rules)) > 1:
        raise ValueError(
            f"{name} has one vocabulary for both sides, but in {dataset.directory} sources have"
            f" the normalization {rules[0]} and targets {rules[1]}. Prepare the text with"
            f" --joint_vocab, or leave out --own_vocabulary."
        )
    known: dict[str, Any] = {  # imported vocabularies may have a normalization of their own
        f"{side}_normalization": rule
        for side, rule in zip(SIDES, rules, strict=True)
        if rule in NORMALIZATIONS
    }
    return PrepareParams(
        source_vocab_size=params.source_vocab_size,
        target_vocab_size=params.target_vocab_size,
        joint_vocab=params.joint_vocab,
        tags_on_both_sides=dataset.tags_on_both_sides,
        cleaning=(),  # the text is that of a dataset
        max_length=_ANY_LENGTH,
        **known,
    )


def _texts(dataset, split, pair) -> Iterator[tuple[str, str, str]]:
    """(pair, source, target) of each example, as the dataset's vocabularies write them."""
    for shard in dataset.pair(pair).shards.get(split, ()):
        examples = list(dataset.records(shard))
        if split == SPLITS[0]:
            texts = (train_texts(dataset, examples, side) for side in SIDES)
            yield from ((pair, *both) for both in zip(*texts, strict=True))
        else:
            yield from ((pair, one.source_text, one.target_text) for one in examples)


def _check_comparable(pair: str, runs: Sequence[TrainingJob]) -> None:
    """Raises ValueError if the results of several models of a pair on dev cannot be compared."""
    if len(runs) == 1:
        return
    if not runs[0].dataset.pair(pair).examples.get("dev"):
        raise ValueError(
            f"{pair} has no dev lines, by which the best model is chosen. Leave it out, with "
            f"--pairs, or pass one --model."
        )
    made = [_model_dir(run) for run in runs]
    measures = []
    for one in made:
        of, by = one.params, one.params.train.best_by
        lines = of.input.source_length, of.input.target_length, one.hashes["target"]
        measures.append((by, of.train.dev_bleu_sentences if by.needs_translations else lines))
    if len(set(measures)) > 1:
        raise ValueError(
            f"{pair}: {', '.join(one.model for one in made)} cannot be compared on dev. They need "
            f"the same train.best_by and train.dev_bleu_sentences; and for DevLoss() the same rows "
            f"and vocabulary. Pass {_BY_CHRF}."
        )


def _model_dir(run):
    return ModelDir.for_training(run.logdir, run.model, run.overrides, run.dataset, run.params)


def _examples(run) -> Mapping[str, int]:
    """Pair -> number of training examples, also in further corpora."""
    return _model_dir(run).params.input.mixture(run.dataset).examples


def _train(runs: Mapping[str, Sequence[TrainingJob]]) -> dict[Path, float]:
    """Trains the unfinished runs; returns by logdir the lowest value that train.best_by found."""
    losses, runtimes = {}, _Runtimes(train_step)
    every = _by_vocabulary((pair, run) for pair, tried in runs.items() for run in tried)
    for i, (pair, run) in enumerate(every, start=1):
        label = f"{run.model} " if len(runs[pair]) > 1 else ""
        prefix = f"[{label}{i}/{len(every)} {pair}] "
        with lock.hold(run.logdir):
            model_dir = _model_dir(run)
            result = run_training(
                model_dir,
                run.dataset,
                runtimes.of(run, model_dir.task),
                lambda line, prefix=prefix, run=run: run.report(prefix + line),
            )
        losses[run.logdir] = result.best_loss
    return losses


def _best(pair, runs, losses, report) -> TrainingJob:
    """The run with the best model of a pair."""
    best = min(runs, key=lambda run: losses[run.logdir])
    if len(runs) > 1:
        by = _model_dir(best).params.train.best_by
        tried = ", ".join(f"{run.model} {by.text(losses[run.logdir])}" for run in runs)
        report(f"{pair}: {best.model} is chosen by {by.name} ({tried})")
    return best


def _translators(chosen) -> Iterator[tuple[str, Translator]]:
    """(pair, its translator); pairs of equal models use one runtime, one after another."""
    runtimes = _Runtimes(lambda task: None)
    for pair, run in _by_vocabulary(chosen.items()):
        model_dir = ModelDir.open(run.logdir)
        yield pair, load_translator(model_dir, runtimes.of(run, model_dir.task))[0]


class _Runtimes:
    """Gives each run a runtime.

    Consecutive runs share a runtime, and so its compiled functions, if their models, the sizes of
    their vocabularies and their params are equal, except for `input.pairs`.
    """

    def __init__(self, step: Callable[[TranslationTask], Any]):
        """`step` makes the step of a task."""
        self._step = step
        self._key: Any = None
        self._made: Any = None

    def of(self, run: TrainingJob, task: TranslationTask) -> Any:
        """The runtime of a run; the one before is freed if it is another."""
        params = task.params
        alike = dataclasses.replace(params, input=dataclasses.replace(params.input, pairs=()))
        key = run.model, task.num_pieces, len(task.pairs), alike
        if key != self._key:
            self._made = None
            self._key, self._made = key, run.make_runtime(task, self._step(task))
        return self._made


def _by_vocabulary(runs: Iterable[tuple[str, TrainingJob]]) -> list[tuple[str, TrainingJob]]:
    """(pair, run), those with equal models and sizes of vocabularies in a row."""
    return sorted(runs, key=lambda one: (one[1].model, -one[1].dataset.target_vocabulary.size))
