"""Preparation as an Apache Beam pipeline: Beam's workers make the pieces of `data.stages`.

    for each stage: list its pieces | Reshuffle | make each piece | count

The pieces of a stage are listed after the stage before has finished, because they depend on its
files. The elements of the pipeline are the paths of pieces; the text stays in files. All workers
and the process that starts the pipeline need the same file system.
"""

import functools
import pickle
from collections.abc import Sequence
from typing import NamedTuple

from lingvo_moe.config.plugins import import_plugins, imported
from lingvo_moe.data.prepare_pair import Piece, Work
from lingvo_moe.data.stages import stages
from lingvo_moe.system.pieces import take

try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
except ImportError as error:
    raise ImportError(
        f"A Beam pipeline needs apache-beam ({error}): pip install apache-beam."
    ) from error


class _Job(NamedTuple):
    """The work and the plug-ins that its params need, in a form that workers can load."""

    plugins: bytes
    work: bytes


def run_pipeline(work: Work, options: Sequence[str]) -> None:
    """Makes all unfinished pieces of a preparation with absolute paths, whose directory exists.
    `options` are flags such as --runner=FlinkRunner. Raises OSError: something is wrong with the
    corpus or a file, or the pipeline has failed."""
    job = _Job(pickle.dumps(imported()), pickle.dumps(work))
    try:
        with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
            done = pipeline | "begin" >> beam.Create([0])
            for number, stage in enumerate(stages(work)):
                done = (
                    done
                    | f"list: {stage.name}" >> beam.FlatMap(_unfinished, job, number)
                    | f"spread: {stage.name}" >> beam.Reshuffle()
                    | stage.name >> beam.Map(_make, job, number)
                    | f"count: {stage.name}" >> beam.combiners.Count.Globally()
                )
    except Exception as error:  # each runner has its own
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise OSError(
            f"The Beam pipeline failed: {lines[-1] if lines else type(error).__name__}. See the "
            f"log of its runner; the same command goes on from the finished pieces."
        ) from error
    for stage in stages(work):
        for piece in stage.pieces():
            if not piece.path.exists():
                raise OSError(
                    f"The Beam pipeline ended without {piece.path}. All its workers and this "
                    f"process need the same file system, and this process must wait for the end."
                )


@functools.lru_cache(1)
def _pieces(job: _Job, stage: int) -> dict[str, Piece]:
    """Path -> piece, of a stage."""
    import_plugins(pickle.loads(job.plugins))
    pieces = stages(pickle.loads(job.work))[stage].pieces()
    return {str(piece.path): piece for piece in pieces}


def _unfinished(before: int, job: _Job, stage: int) -> list[str]:
    """The path of each unfinished piece of a stage."""
    del before
    return [path for path, piece in _pieces(job, stage).items() if not piece.path.exists()]


def _make(path: str, job: _Job, stage: int) -> str:
    """Makes a piece; returns its path."""
    piece = _pieces(job, stage)[path]
    take(piece.path, functools.partial(piece.make, lambda count: None), wait=True)
    return path
