"""Bilingual baselines: a model for each pair, trained and scored, for comparison.

DIRECTORY/MODEL/PAIR     the logdir of a pair's model
DIRECTORY/data-KEY/PAIR  a pair's data with its own vocabulary; KEY is of the data and the sizes
DIRECTORY/report         their report, which `evaluate` compares with
"""

import contextlib
import dataclasses
import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lingvo_moe.core import lock
from lingvo_moe.core.fields import FROM_DATA, list_of
from lingvo_moe.core.files import check_file_name, check_output, maker_of, new_directory
from lingvo_moe.core.lines import first_of
from lingvo_moe.data.corpora import write_corpus
from lingvo_moe.data.dataset import FILE as DATASET_FILE
from lingvo_moe.data.dataset import SIDES, SPLITS, Dataset
from lingvo_moe.data.normalization import NORMALIZATIONS
from lingvo_moe.data.packing import Shape
from lingvo_moe.data.prepare import prepare
from lingvo_moe.data.prepare_params import PrepareParams
from lingvo_moe.data.records import Example
from lingvo_moe.data.vocabulary import Vocabulary
from lingvo_moe.evaluation.baselines import IN_OUTPUT
from lingvo_moe.evaluation.evaluate import write_report
from lingvo_moe.evaluation.report import REPORT_FILE, Report, load_report
from lingvo_moe.tasks.choice_on_dev import check_comparable, check_dev_lines
from lingvo_moe.tasks.evaluation import load_translator, references_of, translate_split
from lingvo_moe.tasks.floor import train_texts
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.new_logdir import check_new_logdir
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.recipe import recipe, with_values
from lingvo_moe.tasks.training import TrainingJob, run_training, train_step
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.tasks.translator import Translator

MAKER = "lingvo-moe-baselines"
_DATA = "data-"  # prefix of the directories of data, which are beside those of models
_ANY_LENGTH = 100_000  # tokens; rows of batches have their own limit


def train_baselines(
    jobs: Sequence[TrainingJob],
    pairs: Sequence[str] = (),
    split: str = "test",
    own_vocabulary: bool = False,
) -> Report:
    """Trains and scores a bilingual model for each pair; the same call resumes.

    With several jobs each pair is trained with the model of each, and the best one on dev, by
    `train.best_by`, is scored. All arguments are checked before the training starts. An earlier
    report of these pairs is replaced.

    Args:
        jobs: what to train; they differ in the model, and their logdir is the DIRECTORY above.
        pairs: to train; () for all with training examples and lines in the split.
        split: to score on, "dev" or "test".
        own_vocabulary: whether each pair has a vocabulary that is trained on its text alone, with
            the model's sizes, instead of that of the dataset.

    Raises:
        ValueError, OSError: a DIRECTORY that another tool made, an unknown or repeated pair, one
            without training examples that fit a row, no lines in the split, no dev lines to choose
            the best by, models whose results on dev cannot be compared, files in DIRECTORY/report
            that this function did not make, a report there with pairs that are not in pairs, a
            vocabulary that cannot be trained, or as `train_model`.
        SystemExit: a signal stopped the training.
    """
    dataset, report, output = jobs[0].dataset, jobs[0].report, jobs[0].logdir / IN_OUTPUT
    check_output(output, MAKER, overwrite=True)
    if (maker := maker_of(output.parent)) is not None:
        raise ValueError(f"{output.parent} was made by {maker}; give another output.")
    pairs = list_of(pairs, "pairs") or _with_train_lines(jobs[0], report)
    pairs = list(references_of(dataset, split, pairs, report))
    _check_earlier_report(output, pairs)
    models = _checked(jobs, pairs, own_vocabulary)
    chosen = _best_of_each([(model, _train(model)) for model in models], pairs, report)
    outputs = translate_split(_translators(chosen), dataset, split, report)
    outputs = [_told(one, chosen[one.pair], len(models) > 1) for one in outputs]
    names = [model.name for model in models]
    name = f"best of {', '.join(names)}" if len(models) > 1 else names[0]
    with new_directory(output, MAKER, overwrite=True) as directory:
        return write_report(outputs, directory, model=name, checkpoint_step=None, split=split)


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


@dataclasses.dataclass(frozen=True)
class _Model:
    """One of the models that each pair is trained with.

    Attributes:
        name: of the model.
        label: the begin of its lines of progress.
        params: pair -> params; those of a logdir that exists may differ from the others.
        runs: pair -> its training.
    """

    name: str
    label: str
    params: Mapping[str, TranslationParams]
    runs: Mapping[str, TrainingJob]


def _checked(
    jobs: Sequence[TrainingJob], pairs: Sequence[str], own_vocabulary: bool
) -> list[_Model]:
    """The models; raises the errors that must come before hours of training."""
    names, several = [job.model for job in jobs], len(jobs) > 1
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"Each --model must be different; repeated: {', '.join(repeated)}. In Python, give "
            f"several params by name: model={{'a': …, 'b': …}}."
        )
    for name in names:
        check_file_name(name, "a bilingual model", "small.Bilingual")
        if name == IN_OUTPUT or name.startswith(_DATA):
            raise ValueError(
                f"{name!r} cannot name a bilingual model, because {IN_OUTPUT} and {_DATA}* beside "
                f"the models are the report and data. Give another name."
            )
    models = [_model(job, pairs, several) for job in jobs]
    if several:
        for pair in pairs:
            given = [model.params[pair] for model in models]
            prepared = {_preparation(jobs[0].dataset, params) for params in given}
            known = [with_values(p, recipe(jobs[0].dataset, p)) for p in given]
            check_comparable(names, known, not own_vocabulary or len(prepared) == 1)
    every = [params for model in models for params in model.params.values()]
    check_dev_lines(jobs[0].dataset, pairs, every, several)
    if own_vocabulary:
        models = [_with_own_data(of, one.logdir) for of, one in zip(models, jobs, strict=True)]
    else:
        _check_room(models, jobs[0].dataset)
    for pair, run in (one for model in models for one in model.runs.items()):
        _check_logdir(run, jobs[0], own_vocabulary)
        _check_rows(run, pair, several)
    return models


def _model(job: TrainingJob, pairs: Sequence[str], several: bool) -> _Model:
    """A job's model, trained on the job's data."""
    label = f"{job.model} " if several else ""
    runs = {
        pair: dataclasses.replace(
            job,
            logdir=_logdir(job, pair),
            overrides=[*job.overrides, f"input.pairs={(pair,)!r}"],
        )
        for pair in pairs
    }
    for run in runs.values():
        check_new_logdir(run.logdir)
    params = {
        pair: ModelDir.params_for_training(run.logdir, run.model, run.overrides, run.params)
        for pair, run in runs.items()
    }
    return _Model(job.model, label, params, runs)


def _logdir(job: TrainingJob, pair: str) -> Path:
    """Where a pair's model is trained."""
    return job.logdir / job.model / pair


def _with_own_data(model: _Model, output: Path) -> _Model:
    """The model, trained on data in output with vocabularies of each pair's own."""
    for pair, params in model.params.items():
        _check_normalization(model.runs[pair].dataset, model.name, params)
        if params.input.corpora:
            raise ValueError(
                f"{pair}: with --own_vocabulary a model has no further corpora, because they have"
                f" another vocabulary. Pass --set=input.corpora=() or leave out --own_vocabulary."
            )
    runs = {}
    for pair, run in model.runs.items():
        wanted = _preparation(run.dataset, model.params[pair])
        key = hashlib.sha256(f"{run.dataset.sha256} {wanted}".encode()).hexdigest()[:12]
        home = output / f"{_DATA}{key}"
        with lock.hold(home, f".{pair}.lock", wait=True):
            if not (home / pair / DATASET_FILE).exists():
                with _named(pair):
                    _prepare_alone(run, pair, home / pair, wanted)
        runs[pair] = dataclasses.replace(run, dataset=Dataset.load(home / pair))
    return dataclasses.replace(model, runs=runs)


def _check_normalization(dataset, name, params):
    """Raises ValueError if a vocabulary for both sides would not read sources as they are tested.

    The dataset has train sources only in normalized form, so they cannot be normalized otherwise.
    """
    rules = [getattr(dataset, f"{side}_vocabulary").normalization for side in SIDES]
    if params.joint_vocab and len(set(rules)) > 1:
        raise ValueError(
            f"{name} has one vocabulary for both sides, but in {dataset.directory} sources have"
            f" the normalization {rules[0]} and targets {rules[1]}. Prepare the text with"
            f" --joint_vocab, or leave out --own_vocabulary."
        )


@contextlib.contextmanager
def _named(pair: str) -> Iterator[None]:
    """Errors in the block begin with the pair."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{pair}: {error} Or leave the pair out, with --pairs.") from error


def _preparation(dataset: Dataset, params: TranslationParams) -> PrepareParams:
    """How a pair of the dataset is prepared for a model."""
    known: dict[str, Any] = {  # imported vocabularies may have a normalization of their own
        f"{side}_normalization": rule
        for side in SIDES
        if (rule := getattr(dataset, f"{side}_vocabulary").normalization) in NORMALIZATIONS
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


def _check_room(models, dataset):
    """Raises ValueError if a model has fewer pieces than the dataset."""
    sizes = {side: getattr(dataset, f"{side}_vocabulary").size for side in SIDES}
    for model in models:
        for params in model.params.values():
            rooms = {side: getattr(params, f"{side}_vocab_size") for side in SIDES}
            if any(rooms[side] is not FROM_DATA and sizes[side] > rooms[side] for side in SIDES):
                flags = " ".join(f"--set={side}_vocab_size={sizes[side]}" for side in SIDES)
                raise ValueError(
                    f"The vocabularies of the dataset have {sizes['source']} and"
                    f" {sizes['target']} pieces; {model.name} has room for {rooms['source']} and"
                    f" {rooms['target']}. Pass --own_vocabulary, which trains vocabularies for"
                    f" each pair that fit the model, or {flags}."
                )


def _check_logdir(run, job, own_vocabulary):
    """Raises ValueError if the run of a job cannot be trained, or resumed in its logdir."""
    try:
        _model_dir(run).params.input.mixture(run.dataset)
    except ValueError as error:
        begun = run.logdir / "source.model"
        if begun.exists() and Vocabulary.load(begun).sha256 != run.dataset.hashes["source"]:
            raise ValueError(_other_vocabulary(begun, job, own_vocabulary)) from error
        raise


def _check_rows(run: TrainingJob, pair: str, several: bool) -> None:
    """Raises ValueError if no example to train with, or to choose with, fits a row."""
    params = _model_dir(run).params
    given = params.input
    shape = Shape(given.batch_size, given.source_length, given.target_length)
    examples: dict[str, Iterable[Example]] = {
        "train": (
            stream.with_tag(stream.example(i))
            for stream in given.mixture(run.dataset).streams
            for i in range(stream.size)
        )
    }
    if several or params.train.best_by.needs_translations:
        examples["dev"] = run.dataset.examples("dev", pair)
    for split, found in examples.items():
        if not any(map(shape.has_room, found)):
            raise ValueError(
                f"{pair}: no {split} example fits rows of {shape.source_length} and "
                f"{shape.target_length} tokens. Raise input.source_length and "
                f"input.target_length, or leave the pair out, with --pairs."
            )


def _other_vocabulary(begun: Path, job: TrainingJob, own_vocabulary: bool) -> str:
    """The message of an error: a logdir was begun with another vocabulary than that of the run.

    Args:
        begun: the logdir's source vocabulary.
        job: the job of all pairs; its logdir contains the logdirs of the pairs.
        own_vocabulary: whether the pair has a vocabulary of its own now.
    """
    flags = "--noown_vocabulary", "--own_vocabulary"
    if own_vocabulary:
        others = [job.dataset.source_vocabulary.model_bytes]
    else:
        found = job.logdir.glob(f"{_DATA}*/{begun.parent.name}/{begun.name}")
        others = [path.read_bytes() for path in found]
    if begun.read_bytes() in others:
        now, then = flags[own_vocabulary], flags[not own_vocabulary]
        return (
            f"{begun.parent} was begun with {then}, and now the call has {now}. Pass {then} again,"
            f" or give another --output."
        )
    return (
        f"{begun.parent} was begun with another vocabulary, from other data. Give the --data that"
        f" it was begun with, or another --output."
    )


def _prepare_alone(run, pair, directory, params):
    """Makes a dataset of one pair of the run's dataset."""
    dataset = run.dataset
    run.report(f"{pair}: a dataset with a vocabulary of its own")
    splits = [split for split in SPLITS if dataset.pair(pair).examples.get(split)]
    with tempfile.TemporaryDirectory(prefix="lingvo_moe_") as scratch:
        corpus = Path(scratch) / "corpus"
        write_corpus(corpus, {split: _texts(dataset, split, pair) for split in splits})
        made = prepare(
            corpus, directory, params, card=False, overwrite=True, report=lambda line: None
        )
    before, after = (of.pair(pair).examples[SPLITS[0]] for of in (dataset, made))
    if after < before:
        run.report(
            f"{pair}: {before - after} of {before} train lines are left out; after normalization"
            f" they repeat others, or sources of dev and test."
        )


def _texts(dataset, split, pair) -> Iterator[tuple[str, str, str]]:
    """(pair, source, target) of each example, as the dataset's vocabularies write them."""
    for shard in dataset.pair(pair).shards.get(split, ()):
        examples = list(dataset.read_shard(shard))
        if split == SPLITS[0]:
            texts = (train_texts(dataset, examples, side) for side in SIDES)
            yield from ((pair, *both) for both in zip(*texts, strict=True))
        else:
            yield from ((pair, one.source_text, one.target_text) for one in examples)


def _best_of_each(trained, pairs, report) -> dict[str, tuple[str, TrainingJob]]:
    """pair -> (name of its best model, the training).

    Args:
        trained: (model, pair -> what train.best_by minimizes) of each model.
        pairs: to choose for.
        report: takes a line for each pair, if there are several models.
    """
    chosen = {}
    for pair in pairs:
        best, _ = min(trained, key=lambda one: one[1][pair])
        chosen[pair] = best.name, best.runs[pair]
        if len(trained) > 1:
            by = best.params[pair].train.best_by
            tried = ", ".join(f"{model.name} {by.text(losses[pair])}" for model, losses in trained)
            report(f"{pair}: {best.name} is chosen by {by.name} ({tried})")
    return chosen


def _told(output, chosen, several):
    """A pair's translations with the number of its training examples and the chosen model."""
    name, run = chosen
    params = _model_dir(run).params
    count = params.input.mixture(run.dataset).examples[output.pair]
    told = dataclasses.replace(output, train_examples=count)
    return dataclasses.replace(told, model=name) if several else told


def _model_dir(run):
    return ModelDir.for_training(run.logdir, run.model, run.overrides, run.dataset, run.params)


def _train(model: _Model) -> dict[str, float]:
    """Trains the unfinished runs; returns by pair the lowest value that train.best_by found.

    Pairs with vocabularies of equal size and equal params share the compiled step: only the data
    and the initial state change.
    """
    losses, runtimes = {}, _Runtimes(train_step)
    for i, (pair, run) in enumerate(_by_vocabulary(model.runs.items())):
        prefix = f"[{model.label}{i + 1}/{len(model.runs)} {pair}] "
        with lock.hold(run.logdir):
            model_dir = _model_dir(run)
            result = run_training(
                model_dir,
                run.dataset,
                runtimes.of(run, model_dir.task),
                lambda line, prefix=prefix, run=run: run.report(prefix + line),
                input_workers=run.input_workers,
            )
        losses[pair] = result.best_loss
    return losses


def _translators(chosen) -> Iterator[tuple[str, Translator]]:
    """(pair, its translator); pairs of equal models use one runtime, one after another."""
    runtimes = _Runtimes(lambda task: None)
    for pair, run in _by_vocabulary((pair, run) for pair, (_, run) in chosen.items()):
        model_dir = ModelDir.open(run.logdir)
        yield pair, load_translator(model_dir, runtimes.of(run, model_dir.task))[0]


class _Runtimes:
    """Gives each run a runtime.

    Consecutive runs share a runtime, and so its compiled functions, if their models, the sizes of
    their vocabularies and their params are equal, except for `input.pairs`.
    """

    def __init__(self, step):
        """`step` makes the step of a task."""
        self._step, self._key, self._made = step, None, None

    def of(self, run: TrainingJob, task: TranslationTask) -> Any:
        """The runtime of a run; the one before is freed if it is another."""
        params = task.params
        alike = dataclasses.replace(params, input=dataclasses.replace(params.input, pairs=()))
        key = run.model, task.num_pieces, len(task.pairs), alike
        if key != self._key:
            self._made = None
            self._key, self._made = key, run.make_runtime(task, self._step(task))
        return self._made


def _by_vocabulary(runs):
    """(pair, run), those with equal models and sizes of vocabularies in a row."""
    return sorted(runs, key=lambda one: (one[1].model, -one[1].dataset.target_vocabulary.size))
