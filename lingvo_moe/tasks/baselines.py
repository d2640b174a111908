"""Bilingual baselines: a model for each pair, trained and scored, for comparison.

DIRECTORY/PAIR       the logdir of a pair's model
DIRECTORY/report     their report, which `evaluate` compares with
"""

import sys
from collections.abc import Iterator, Sequence

from lingvo_moe.core import lock
from lingvo_moe.core.files import check_output, new_directory
from lingvo_moe.data.curriculum import pairs_with_text
from lingvo_moe.evaluation.baselines import IN_OUTPUT
from lingvo_moe.evaluation.evaluate import write_report
from lingvo_moe.evaluation.report import Report
from lingvo_moe.tasks.evaluation import load_translator, references_of, translate_split
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.training import TrainingJob, run_training, train_step
from lingvo_moe.tasks.translator import Translator
from lingvo_moe.training.signals import exit_code

MAKER = "lingvo-moe-baselines"


def train_baselines(job: TrainingJob, pairs: Sequence[str] = (), split: str = "test") -> Report:
    """Trains and scores a bilingual model for each pair; the same call resumes.

    All arguments are checked before the training starts. An earlier report is replaced.

    Args:
        job: what to train; its logdir is the DIRECTORY above.
        pairs: to train; () for all with training examples and lines in the split.
        split: to score on, "dev" or "test".

    Raises:
        ValueError, OSError: an unknown or repeated pair, one without training examples, no lines
            in the split, files in DIRECTORY/report that this did not make, or as `train_model`.
        SystemExit: a signal stopped the training.
    """
    output = job.logdir / IN_OUTPUT
    check_output(output, MAKER, overwrite=True)
    pairs = [pair.name for pair in pairs_with_text(job.dataset, pairs)]
    pairs = list(references_of(job.dataset, split, pairs, job.report))
    _train(job, pairs)
    outputs = translate_split(_translators(job, pairs), job.dataset, split, job.report)
    with new_directory(output, MAKER, overwrite=True) as directory:
        return write_report(outputs, directory, model=job.model, checkpoint_step=None, split=split)


def _train(job, pairs):
    """Trains the unfinished models under job.logdir/PAIR.

    All pairs share the compiled step: only the data and the initial state change.
    """

    def model_dir_of(pair):
        overrides = [*job.overrides, f"input.pairs=({pair!r},)"]
        return ModelDir.for_training(
            job.logdir / pair, job.model, overrides, job.dataset, job.params
        )

    for pair in pairs:
        model_dir_of(pair)  # errors must come before hours of training
    runtime = None
    for i, pair in enumerate(pairs):
        prefix = f"[{i + 1}/{len(pairs)} {pair}] "
        with lock.hold(job.logdir / pair):
            model_dir = model_dir_of(pair)
            runtime = runtime or job.make_runtime(model_dir.task, train_step(model_dir.task))
            result = run_training(
                model_dir,
                job.dataset,
                runtime,
                lambda line, prefix=prefix: job.report(prefix + line),
            )
        if result.signal:
            sys.exit(exit_code(result.signal))


def _translators(job, pairs) -> Iterator[tuple[str, Translator]]:
    """(pair, its translator); all use one runtime, one after another."""
    runtime = None
    for pair in pairs:
        model_dir = ModelDir.open(job.logdir / pair)
        runtime = runtime or job.make_runtime(model_dir.task, None)
        yield pair, load_translator(model_dir, runtime)[0]
