"""Preparation as an Apache Beam pipeline: Beam's workers make the pieces of `data.stages`.

    for each stage: list its pieces | Reshuffle | make each piece | count

The pieces of a stage are listed after the stage before has finished, because they depend on its
files. The elements of the pipeline are the paths of pieces; the text stays in files. All workers
and the process that starts the pipeline need the same file system.
"""

import contextlib
import dataclasses
import functools
import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path

from lingvo_moe.core.files import MANIFEST, write_whole
from lingvo_moe.core.pieces import take
from lingvo_moe.core.plugins import import_plugins, imported
from lingvo_moe.data.stages import PreparationStage, stages
from lingvo_moe.data.work import Work

try:
    import apache_beam as beam
    from apache_beam.metrics import Metrics
    from apache_beam.options.pipeline_options import PipelineOptions
except ImportError as error:
    raise ImportError(
        f"A Beam pipeline needs apache-beam ({error}): pip install 'lingvo-moe[beam]'."
    ) from error

# A worker keeps the lists of pieces of this many parts. Each has the dev and test text of its pair.
_PARTS = 4
_ERRORS = {"ValueError": ValueError, "OSError": OSError}


def run_pipeline(work: Work, options: Sequence[str]) -> None:
    """Makes all pieces; finished ones are kept.

    Args:
        work: the preparation; its directory exists.
        options: flags of the pipeline, such as --runner=FlinkRunner.

    Raises:
        ValueError: something is wrong with the corpus.
        OSError: something cannot be read or written, or the pipeline has failed.
    """
    work = _absolute(work)
    job = _Job(work)
    _error_file(work).unlink(missing_ok=True)
    try:
        with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
            done = pipeline | "begin" >> beam.Create([0])
            for number, stage in enumerate(stages(work)):
                done = done | stage.name >> _RunStage(job, number)
    except Exception as error:  # each runner has its own
        _raise_reported(work)
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise OSError(
            f"The Beam pipeline failed: {lines[-1] if lines else type(error).__name__}. See the "
            f"log of its runner; the same command goes on from the finished pieces."
        ) from error
    _check_finished(work)


def _absolute(work: Work) -> Work:
    """The work with absolute paths, because workers run in other directories."""
    pairs = tuple(
        dataclasses.replace(
            pair,
            files={
                split: tuple(p.absolute() for p in paths) for split, paths in pair.files.items()
            },
        )
        for pair in work.pairs
    )
    extend = work.params.extend and str(Path(work.params.extend).absolute())
    params = dataclasses.replace(work.params, extend=extend)
    return dataclasses.replace(
        work, directory=work.directory.absolute(), pairs=pairs, params=params
    )


def _check_finished(work):
    for stage in stages(work):
        for piece in stage.pieces():
            if not piece.path.exists():
                raise OSError(
                    f"The Beam pipeline ended without {piece.path}. All its workers and this "
                    f"process need the same file system, and this process must wait for the end."
                )


def _error_file(work):
    return work.directory / f".error{MANIFEST}"  # removed with the pieces


def _raise_reported(work):
    """Raises the error that a worker has written to the file, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        kind, text = json.loads(_error_file(work).read_text())
        _error_file(work).unlink()
        raise _ERRORS[kind](text)


class _Job:
    """The work in a form that workers can load, with the plug-ins that its params need."""

    def __init__(self, work: Work):
        self._pickled = pickle.dumps(imported()), pickle.dumps(work)

    @functools.cached_property
    def work(self) -> Work:
        """The work."""
        plugins, work = self._pickled
        import_plugins(pickle.loads(plugins))
        return pickle.loads(work)

    def __getstate__(self):
        return {"_pickled": self._pickled}


class _RunStage(beam.PTransform):
    """Makes the pieces of a stage: one element -> the number of pieces made, after the last."""

    def __init__(self, job: _Job, number: int):
        super().__init__()
        self._job, self._number = job, number

    def expand(self, before):
        return (
            before
            | "list" >> beam.ParDo(_List(self._job, self._number))
            | beam.Reshuffle()
            | "make" >> beam.ParDo(_Make(self._job, self._number))
            | beam.combiners.Count.Globally()
        )


class _OfStage(beam.DoFn):
    """A function that workers run for elements of a stage."""

    def __init__(self, job: _Job, number: int):
        self._job, self._number = job, number

    @property
    def _stage(self) -> PreparationStage:
        return stages(self._job.work)[self._number]


class _List(_OfStage):
    """The unfinished pieces: (number of the part, path)."""

    def process(self, element):
        del element
        with _reported(self._job.work):
            for number, part in enumerate(self._stage.parts):
                for piece in part():
                    if not piece.path.exists():
                        yield number, str(piece.path)


class _Make(_OfStage):
    """Makes a piece."""

    def setup(self):
        stage = self._stage
        lines = Metrics.counter("lingvo-moe-prepare", f"lines: {stage.name}")
        self._count = lines.inc
        self._pieces = functools.lru_cache(_PARTS)(
            lambda part: {str(piece.path): piece for piece in stage.parts[part]()}
        )

    def process(self, element):
        part, path = element
        with _reported(self._job.work):
            piece = self._pieces(part)[path]
            take(Path(path), functools.partial(piece.make, self._count), wait=True)
            self._count(piece.lines)
        yield path


@contextlib.contextmanager
def _reported(work: Work) -> Iterator[None]:
    """Writes an error to a file, because runners pass on only a text with a traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        kind = "OSError" if isinstance(error, OSError) else "ValueError"
        write_whole(_error_file(work), json.dumps([kind, str(error)]))
        raise
