"""The Python API: the functions behind the tools. docs/reference/python_api.md has examples."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from lingvo_moe.config.fields import short_repr
from lingvo_moe.config.params import evolve, text_of
from lingvo_moe.config.registry import get_params
from lingvo_moe.config.registry import register as register
from lingvo_moe.data.corpora import Examples, write_corpus
from lingvo_moe.data.dataset import FILE as DATASET_FILE
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.prepare import PrepareParams, prepare_synthetic
from lingvo_moe.data.prepare import prepare as prepare_corpus
from lingvo_moe.data.synthetic import SyntheticCorpus
from lingvo_moe.evaluation.report import Report
from lingvo_moe.inference.scorer import Score as Score
from lingvo_moe.inference.translator import Translation as Translation
from lingvo_moe.jobs import baselines as bilingual
from lingvo_moe.jobs import evaluation
from lingvo_moe.jobs.model import Model
from lingvo_moe.jobs.training import TrainingJob, train_model
from lingvo_moe.nn.one_process import NotLoaded, is_forked
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving.exported import Exported, is_saved_model
from lingvo_moe.serving.formats.base import Format
from lingvo_moe.serving.formats.saved_model import SavedModel
from lingvo_moe.serving.prune import Pruning
from lingvo_moe.system.files import check_local
from lingvo_moe.system.progress import report
from lingvo_moe.tasks.model_dir import ModelDir, check_new_logdir
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.translation import RuntimeFn
from lingvo_moe.training.loop import TrainResult

# Lines of text by split, or those of "train" alone.
Corpus = str | Path | Mapping[str, Examples] | Examples

_SAVED_MODEL = SavedModel()


def params(name: str) -> TranslationParams:
    """The params of a registered model, such as "small.MoE"; `evolve` changes them.

    Raises:
        ValueError: no such model; the message offers the nearest names.
    """
    return get_params(name)


def load(
    directory: str | Path, *, step: int | None = None, make_runtime: RuntimeFn = Local
) -> "Model | Exported":
    """A trained model, from its logdir or from an exported SavedModel.

    TensorFlow cannot be forked: in a fork of a process that ran it the model is not loaded, and its
    first use raises RuntimeError.

    Args:
        directory: either.
        step: which checkpoint of a logdir; None for the best on dev.
        make_runtime: makes the runtime of a logdir's model: `Local`, `Xla` or another RuntimeFn.

    Raises:
        ValueError: the directory is neither, or it is damaged, or a step of a SavedModel was given.
    """
    directory = _path("directory", directory)
    exported = is_saved_model(directory)
    if is_forked():
        return cast(Model, NotLoaded())
    if not exported:
        return Model(ModelDir.open(directory), make_runtime, step)
    if step is not None:
        raise ValueError(f"{directory} is a SavedModel, which has no steps; leave step={step} out.")
    return Exported(directory)


def prepare(
    corpus: Corpus | SyntheticCorpus,
    output: str | Path,
    *,
    processes: int | None = None,
    beam: Sequence[str] | None = None,
    memory_mb: int = 1000,
    overwrite: bool = False,
    report: Callable[[str], None] = report,
    **options: Any,
) -> Dataset:
    """Makes a dataset of parallel text: cleans it, trains vocabularies, writes shards.

    Args:
        corpus: a directory; or a mapping from split ("train", "dev", "test") to an iterable of
            (pair such as "de-en", source, target); or such an iterable for "train"; or a
            SyntheticCorpus, which is written to OUTPUT_raw.
        output: the directory for the dataset.
        processes: number of processes; None for one per core.
        beam: options of an Apache Beam pipeline that makes the pieces; None for this machine.
        memory_mb: memory for sorting, of all processes together, in MB.
        overwrite: replace an earlier dataset; discard an unfinished one of other options.
        report: takes lines of progress and warnings.
        **options: fields of PrepareParams, such as joint_vocab=True.

    Raises:
        ValueError: an unknown option, something is wrong with the corpus, or output exists.
        OSError: something cannot be read or written.
    """
    made, wanted = _path("output", output), PrepareParams()
    for name, value in options.items():
        wanted = evolve(wanted, name, str(value) if isinstance(value, os.PathLike) else value)
    settings: dict[str, Any] = {
        "processes": processes,
        "beam": beam,
        "memory_mb": memory_mb,
        "overwrite": overwrite,
        "report": report,
    }
    if isinstance(corpus, SyntheticCorpus):
        return prepare_synthetic(made, wanted, raw=corpus, **settings)
    with contextlib.ExitStack() as stack:
        if not isinstance(corpus, str | Path):
            splits = corpus if isinstance(corpus, Mapping) else {"train": corpus}
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="lingvo_moe_"))
            corpus = Path(directory) / "corpus"
            write_corpus(corpus, splits)
            if "train" not in splits and not wanted.extend:
                raise ValueError("There are no examples of train; add them to the mapping.")
        return prepare_corpus(_path("corpus", corpus), made, wanted, **settings)


def train(
    model: str | TranslationParams,
    data: Corpus | Dataset,
    logdir: str | Path,
    *,
    init_from: str | Path | None = None,
    set: Mapping[str, Any] | Sequence[str] = (),
    name: str | None = None,
    max_steps: int | None = None,
    make_runtime: RuntimeFn = Local,
    report: Callable[[str], None] = report,
    **options: Any,
) -> TrainResult:
    """Trains a model, or resumes from the newest checkpoint of the logdir.

    Args:
        model: a registered model's name, or params. If the logdir exists, a name is only compared
            with the logdir's, whose params are used; it may be registered no longer. Params, with
            `set`, are used also then, and may differ only where training can resume.
        data: a directory made by `prepare` or what it returned; or examples, in any form that
            `prepare` takes, which are prepared under LOGDIR/data when the logdir is new.
        logdir: directory for checkpoints and events.
        init_from: a logdir, or an export with weights, for the initial weights of a new logdir; the
            params init.* say how they are taken.
        set: dotted path -> value, for fields of the params to change, such as
            {"train.max_steps": 500, "model.moe.gating": TopK(k=4)}; or `--set` texts. Numbers of
            NumPy, paths and lists are taken as numbers, texts and tuples.
        name: the name of a model that is given as params; None for "custom".
        max_steps: the last step, short for the path train.max_steps in set; None for that of the
            params.
        make_runtime: makes the runtime of the steps: `Local`, `Xla` or another RuntimeFn.
        report: takes lines of progress.
        **options: further fields of `jobs.training.TrainingJob`: process, to train in several
            processes; make_scheduler, to move experts between devices; hours, of the run.

    Returns:
        The state of training: step, best_step, best_loss.

    Raises:
        SystemExit: Ctrl-C, SIGTERM or SIGHUP stopped the training; the step is saved, and the same
            call resumes it. So a script ends too: its next lines would use an unfinished model.
        ValueError: model, data and logdir do not fit together, or logdir holds other files.
        FloatingPointError: the loss is not finite.
        OSError: something cannot be read or written.
    """
    logdir = _path("logdir", logdir)
    check_new_logdir(logdir)
    return train_model(
        _job(
            model,
            data,
            logdir,
            set,
            name,
            init_from=init_from,
            max_steps=max_steps,
            make_runtime=make_runtime,
            report=report,
            **options,
        )
    )


def train_baselines(
    model: str | TranslationParams | Sequence[str] | Mapping[str, TranslationParams],
    data: Corpus | Dataset,
    output: str | Path,
    *,
    pairs: Sequence[str] = (),
    split: str = "test",
    own_vocabulary: bool = False,
    set: Mapping[str, Any] | Sequence[str] = (),
    name: str | None = None,
    report: Callable[[str], None] = report,
) -> Report:
    """Trains and scores a bilingual model for each pair, to compare others with, or resumes.

    Args:
        model: as for `train`; or several models: a list of names, or name -> params. Each pair
            then gets the model that is best on dev, by the param train.best_by.
        data, set, name, report: as for `train`.
        output: directory for a logdir of each pair and for `report`. `evaluate` takes it as
            baselines.
        pairs: such as ["de-en"]; () for all that have lines in the split.
        split: to score on, "dev" or "test".
        own_vocabulary: whether each pair has a vocabulary of its own, of the model's sizes, instead
            of that of data.

    Raises:
        ValueError, OSError: as `jobs.baselines.train_baselines`.
        SystemExit: as `train`.
    """
    jobs: list[TrainingJob] = []
    options = {"make_runtime": Local, "report": report}
    for one, label in _named_models(model, name):
        dataset = jobs[0].dataset if jobs else data
        jobs.append(_job(one, dataset, _path("output", output), set, label, **options))
    return bilingual.train_baselines(jobs, pairs, split, own_vocabulary)


def evaluate(
    model: "Model | Exported | ModelDir | str | Path",
    data: Dataset | str | Path,
    *,
    baselines: str | Path | Sequence[str | Path] | None = None,
    output: str | Path | None = None,
    step: int | None = None,
    make_runtime: RuntimeFn = Local,
    report: Callable[[str], None] = report,
    **options: Any,
) -> Report:
    """Scores a model: BLEU, chrF++ and, beside baselines, ΔBLEU for each language pair.

    Args:
        model: a logdir, or what `load` returned for one: then its checkpoint is scored. Not a
            SavedModel.
        data: a directory made by `prepare`, or what it returned.
        baselines: a report to compare with: its directory, or the output of `train_baselines`; or
            several, of which each pair is compared with the first that has it.
        output: directory for the report with its page and plot; None for none.
        step: the step of a logdir's checkpoint; None for the best on dev.
        make_runtime: makes the runtime of a logdir's model: `Local`, `Xla` or another RuntimeFn.
        report: takes lines of progress.
        **options: split, pairs, bleu_tokenizers, pivot, floor, metrics and overwrite of
            `jobs.evaluation.evaluate`.

    Raises:
        ValueError, OSError: the model is a SavedModel, or as `jobs.evaluation.evaluate`.
    """
    logdir, step = _checkpoint(model, step)
    if isinstance(model, Model):
        make_runtime = model.make_runtime
    with tempfile.TemporaryDirectory(prefix="lingvo_moe_") as scratch:
        return evaluation.evaluate(
            logdir,
            data if isinstance(data, Dataset) else Dataset.load(_path("data", data)),
            Path(scratch) / "report" if output is None else _path("output", output),
            make_runtime,
            report,
            step=step,
            baselines=_reports(baselines),
            **options,
        )


def _reports(baselines) -> list[Path]:
    """The paths of the reports to compare with."""
    single = isinstance(baselines, str | os.PathLike | Report)
    found = [baselines] if single else list(baselines or ())
    return [_path("baselines", path) for path in found]


def _path(name: str, path: Any) -> Path:
    """The path that an argument gives, with the home directory for "~".

    Raises:
        ValueError: it is no path, it is empty, as with an empty variable of a shell, or it is the
            address of a bucket.
    """
    if not isinstance(path, str | os.PathLike) or path == "":
        raise ValueError(f"{name} must be a path, such as 'models/moe'; got {short_repr(path)}.")
    check_local(name, str(path))
    return Path(path).expanduser()


def export(
    model: "Model | Exported | ModelDir | str | Path",
    output: str | Path,
    format: Format = _SAVED_MODEL,
    *,
    step: int | None = None,
    overwrite: bool = False,
    pruning: Pruning | None = None,
) -> int:
    """Writes a model for serving; `load` opens a SavedModel again.

    Args:
        model: a logdir, or what `load` returned for one: then its checkpoint is exported. Not a
            SavedModel.
        output: the directory to make; it appears when it is complete.
        format: a Format of `lingvo_moe.serving.formats` or your own, such as
            `SavedModel(STORAGES["int8"])`.
        step: the step of a logdir's checkpoint; None for the best on dev.
        overwrite: whether to replace an earlier export.
        pruning: which experts to remove; None for none.

    Returns:
        The step of the exported checkpoint.

    Raises:
        ValueError, OSError: the model is a SavedModel, or as `Format.export`.
    """
    logdir, step = _checkpoint(model, step)
    return format.export(logdir, _path("output", output), step, overwrite, pruning)


def _checkpoint(
    model: "Model | Exported | ModelDir | str | Path", step: int | None
) -> tuple[ModelDir, int | None]:
    """The logdir of a model and the step of its checkpoint; None for the best.

    Raises:
        ValueError: it is not a logdir, or a model that was loaded has another step.
    """
    if isinstance(model, Model):
        if step not in (None, model.step):
            raise ValueError(
                f"The model is of step {model.step}, not {step}; leave step out, or give the "
                f"logdir, {model.logdir.path}."
            )
        return model.logdir, model.step
    if isinstance(model, ModelDir):
        return model, step
    directory = _path("model", model.path if isinstance(model, Exported) else model)
    if is_saved_model(directory):
        raise ValueError(
            f"{directory} is a SavedModel, which has no checkpoint; give the logdir that it was "
            f"exported from."
        )
    return ModelDir.open(directory), step


def _label(model, name: str | None) -> str:
    """The name of a model: a registered one's own, or the name given for params.

    Raises:
        ValueError: the name is given for a registered model.
    """
    if isinstance(model, TranslationParams):
        return name or "custom"
    if name is not None:
        raise ValueError(f"name={name!r} is for a model given as params; leave it out.")
    return str(model)


def _named_models(model, name) -> list[tuple[Any, str | None]]:
    """The models of `train_baselines`, each with the name given for it."""
    if isinstance(model, Mapping):
        return [(params, key) for key, params in model.items()]
    several = isinstance(model, Sequence) and not isinstance(model, str)
    return [(one, name) for one in (model if several else [model])]


def _job(
    model, data, logdir, set, name, *, init_from=None, max_steps=None, report, **options
) -> TrainingJob:
    """What to train, for `train` and `train_baselines`."""
    if isinstance(set, str):
        set = [set]
    if isinstance(set, Mapping):
        set = [f"{path}={text_of(value)}" for path, value in set.items()]
    if init_from is not None:
        set = [*set, f"init.logdir={_path('init_from', init_from).absolute()}"]
    if max_steps is not None:
        set = [*set, f"train.max_steps={max_steps}"]
    label, given = _label(model, name), None if isinstance(model, str) else model

    def wanted() -> TranslationParams:
        return ModelDir.params_for_training(logdir, label, set, given)

    return TrainingJob(
        model=label,
        params=given,
        overrides=set,
        dataset=_dataset(data, logdir, wanted, report),
        logdir=logdir,
        report=report,
        **options,
    )


def _dataset(
    data: Corpus | Dataset,
    logdir: Path,
    wanted: Callable[[], TranslationParams],
    report: Callable[[str], None],
) -> Dataset:
    """The dataset for `train`; examples are prepared for the wanted params."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str | Path):
        return Dataset.load(_path("data", data))
    directory = logdir / "data"
    if (directory / DATASET_FILE).exists():
        report(f"{directory} exists and is used; the examples given in data are not read.")
        return Dataset.load(directory)
    params = wanted()
    return prepare(
        data,
        directory,
        report=report,
        joint_vocab=params.joint_vocab,
        source_vocab_size=params.source_vocab_size,
        target_vocab_size=params.target_vocab_size,
        extend=params.init.logdir,
        tags_on_both_sides=params.language_tags.on_target,
    )
