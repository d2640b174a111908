"""Makes a dataset from raw parallel text: cleaning, vocabularies, tokenising, shards."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lingvo_moe.config.params import to_fields
from lingvo_moe.config.plugins import source_files
from lingvo_moe.data.corpora import CorpusPair, find_pairs
from lingvo_moe.data.dataset import SIDES, SPLITS, Dataset, PairInfo
from lingvo_moe.data.differences import differences
from lingvo_moe.data.prepare_pair import STAGES, PairWork, Work, digest_of
from lingvo_moe.data.prepare_params import PrepareParams
from lingvo_moe.data.stages import (
    VOCABULARIES,
    check_tags,
    helpers,
    nothing_kept,
    run_stage,
    stages,
)
from lingvo_moe.data.surface import as_written
from lingvo_moe.data.synthetic import SyntheticCorpus
from lingvo_moe.data.vocabulary import Vocabulary
from lingvo_moe.reporting.table import Table
from lingvo_moe.system import lock
from lingvo_moe.system.files import MANIFEST, REPLACE, check_output, new_directory, read_json
from lingvo_moe.system.lines import first_of
from lingvo_moe.system.pieces import begin
from lingvo_moe.system.progress import Progress

MAKER = "lingvo-moe-prepare"
_CURE = f"Give the same corpus and options to go on, or {REPLACE} to start again."
_LINES = 20  # about differences between the splits
_BYTES_A_HELPER = 8 << 20  # bytes of corpus per helper; for less, a helper saves no time

_SYNTHETIC = SyntheticCorpus()


def prepare_synthetic(
    output: Path,
    params: PrepareParams,
    *,
    raw: SyntheticCorpus = _SYNTHETIC,
    overwrite: bool = False,
    report: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Dataset:
    """Writes the synthetic corpus beside output, as OUTPUT_raw, and prepares it. Raises ValueError:
    OUTPUT_raw holds something other than a synthetic corpus; or as `prepare`."""
    check_tags(params)
    check_output(output, MAKER, overwrite)
    corpus = output.with_name(f"{output.name}_raw")
    raw.write(corpus, overwrite=True)
    report(f"Wrote the synthetic corpus to {corpus}.")
    return prepare(corpus, output, params, overwrite=overwrite, report=report, **options)


def prepare(
    corpus: Path,
    output: Path,
    params: PrepareParams,
    *,
    processes: int | None = None,
    beam: Sequence[str] | None = None,
    memory_mb: int = 1000,
    overwrite: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> Dataset:
    """Makes a dataset, which appears under output when it is complete.

    The work is done in pieces, in the directory OUTPUT.parts (see `data.stages`). After a kill the
    same call goes on from the finished pieces, and gives the same bytes.

    Args:
        corpus: see `corpora.find_pairs`; neither it nor output may contain the other.
        processes: number of processes on this machine, 1 or more; None for one per core.
        beam: options of an Apache Beam pipeline, whose workers make the pieces (data.apache_beam);
            None for processes on this machine.
        memory_mb: memory for sorting, in all processes together; with `beam`, in each of a worker.
        overwrite: whether to replace an earlier dataset, and the pieces of another call.
        report: takes lines of progress and warnings.

    Raises ValueError: something is wrong with the corpus, or output exists, or OUTPUT.parts belongs
    to another call; OSError: something cannot be read or written, or the pipeline has failed;
    ImportError: `beam` is given, but apache-beam is not installed.
    """
    if processes is None:
        processes = 1 if beam is not None else len(os.sched_getaffinity(0))
    if processes < 1 or memory_mb < 1:
        raise ValueError(f"{processes=} and {memory_mb=} must be 1 or more.")
    if beam is not None:  # workers run in other directories
        from lingvo_moe.data.apache_beam import run_pipeline  # apache-beam is an extra

        corpus, output = corpus.absolute(), output.absolute()
        extend = params.extend and os.path.abspath(params.extend)
        params = dataclasses.replace(params, extend=extend)
    check_tags(params)
    ours, theirs = output.resolve(), corpus.resolve()
    if ours.is_relative_to(theirs) or theirs.is_relative_to(ours):
        raise ValueError(f"Give an output outside the corpus, not {output}, or one that holds it.")
    pairs = _directions(find_pairs(corpus, report, not params.extend), params.both_directions)
    _check_languages(pairs, params)
    check_output(output, MAKER, overwrite)
    directory = output.with_name(f"{output.name}.parts")
    files = sorted({path for pair in pairs for paths in pair.files.values() for path in paths})
    digests = {path: digest_of(path) for path in files}
    work = Work(directory, tuple(pairs), params, (memory_mb << 20) // processes, digests)
    _warn_of_new_tags(work, report)
    job = _job(corpus, work)
    with lock.hold(directory):
        begun = read_json(directory / MANIFEST) if (directory / MANIFEST).exists() else job
        if overwrite and begun.get("maker") == MAKER and begun != job:
            _remove(directory)
        begin(directory, job, _CURE)
        if work.has_pieces:
            report(f"going on from the finished pieces in {directory}")
        try:
            if beam is not None:
                run_pipeline(work, beam)
            else:
                _run(work, processes, report)
            _check_examples(work)
        except ValueError:  # something is wrong with the corpus, so the pieces are useless
            _remove(directory)
            raise
        dataset = _assemble(work, output, overwrite, report)
        _remove(directory)
    with contextlib.suppress(OSError):  # the user has put files there
        directory.rmdir()
    return dataset


def _check_languages(pairs, params: PrepareParams) -> None:
    """Refuses languages of targets that are not trained."""
    trained = {pair.target for pair in pairs if "train" in pair.files}
    if params.zero_shot_targets or not trained:
        return
    if params.extend:
        trained |= Vocabulary.load(Path(params.extend) / "source.model").tags.keys()
    unknown = [pair for pair in pairs if pair.target not in trained]
    if unknown:
        raise ValueError(
            f"There is dev or test text of {first_of([pair.name for pair in unknown])}, but no "
            f"train text into {unknown[0].target}, so no model learns to write it."
            f" Add train text, leave these pairs out, or pass --set=zero_shot_targets=True."
        )


def _warn_of_new_tags(work: Work, report: Callable[[str], None]) -> None:
    """A language that is known under another name would be learnt again as a new one."""
    if not work.params.extend:
        return
    known = Vocabulary.load(Path(work.params.extend) / "source.model").tags
    if known and (new := [name for name in work.tagged if name not in known]):
        report(
            f"warning: {work.params.extend} has no tag for {first_of(new)}; new tags are added to "
            f"the vocabulary. It has tags for {first_of(sorted(known))}. If it knows these "
            f"languages by other names, rename the files of the corpus and prepare again with "
            f"--overwrite."
        )


def _job(corpus: Path, work: Work) -> dict[str, str]:
    """What determines the bytes of all pieces."""
    digest, params = hashlib.sha256(), work.params
    for path, content in work.digests.items():
        digest.update(f"{path.relative_to(corpus)}\n{content}\n".encode())
    given = {f"params.{name}": text for name, text in to_fields(params).items()}
    used = {}
    if params.extend:
        vocabularies = (Vocabulary.load(Path(params.extend) / f"{side}.model") for side in SIDES)
        used["--extend"] = " and ".join(vocabulary.sha256 for vocabulary in vocabularies)
        if work.extended:
            used["--extend, its dev and test"] = work.extended.sha256
    for path in source_files():  # of the user's own rules of cleaning
        used[f"--import {path}"] = digest_of(path)
    return {"maker": MAKER, "format": "4", "corpus": digest.hexdigest(), **used, **given}


def _remove(directory):
    for name in STAGES:
        shutil.rmtree(directory / name, ignore_errors=True)
    for path in directory.glob(f"*{MANIFEST}*"):
        path.unlink(missing_ok=True)


def _run(work: Work, processes: int, report: Callable[[str], None]) -> None:
    """Makes all pieces on this machine, with helping processes."""
    size = sum(file.stat().st_size for file in work.digests)
    with helpers(work, min(processes - 1, size // _BYTES_A_HELPER)):
        for stage in stages(work):
            if stage.name == VOCABULARIES:
                count = sum(sum(pair.kept_counts) for pair in work.each_pair())
                report(f"training vocabularies on {count} sentence pairs")
            total = sum(piece.lines for piece in stage.pieces()) or None
            run_stage(stage, Progress(_named(stage.name, report), total))


def _named(name, report):
    return lambda line: report(f"{name}: {line}")


def _check_examples(work):
    pairs = [pair for pair in work.each_pair() if "train" in pair.pair.files]
    if pairs and not any(pair.shards()["train"] for pair in pairs):
        raise ValueError(nothing_kept(work))


def _assemble(work: Work, output: Path, overwrite: bool, report: Callable[[str], None]) -> Dataset:
    """Makes the dataset of the finished pieces."""
    source, target = work.vocabularies
    tags = {language: source.tag(language) for language in work.tagged}
    infos: list[PairInfo] = []
    checks = {}
    in_train = work.by_target(PairWork.held_targets_in_train)
    shards: dict[str, Path] = {}
    for pair in work.each_pair():
        name = pair.pair.name
        examples, names = {}, {}
        for split, found in pair.shards().items():
            end = f"of-{len(found):05d}.records"
            placed = {f"{split}/{name}-{i:05d}-{end}": path for i, path in enumerate(found)}
            examples[split] = sum(found.values())
            names[split] = dict(zip(placed, found.values(), strict=True))
            shards |= placed
        languages = pair.pair.source, pair.pair.target
        lengths, ratio, targets = pair.lengths(), pair.length_ratio(), pair.least_targets()
        infos.append(
            PairInfo(name, *languages, len(infos), examples, names, lengths, ratio, targets)
        )
        checks[name] = pair.summary(in_train[pair.pair.target])
        report(f"{name}: {examples.get('train', 0)} training examples")
    if changed := sum(counts["targets_changed"] for counts in checks.values()):
        report(
            f"warning: a model cannot write {changed} targets of dev and test exactly: the target "
            f"vocabulary replaces some of their characters."
        )
    if repeated := sum(counts["targets_in_train"] for counts in checks.values()):
        total = sum(len(pair.held_target_hashes()) for pair in work.each_pair())
        report(
            f"warning: targets of dev and test that are also in train: {repeated} of {total}, so "
            f"scores may be too high. --set=held_out_targets=True leaves such lines out of train."
        )
    hashes = {"source": source.sha256, "target": target.sha256}
    both = work.params.tags_on_both_sides
    with new_directory(output, MAKER, overwrite) as partial:
        source.save(partial / "source.model")
        target.save(partial / "target.model")
        for name, path in shards.items():
            (partial / name).parent.mkdir(exist_ok=True)
            shutil.move(path, partial / name)  # the pieces may be on another disk
        dataset = Dataset(
            partial,
            tuple(infos),
            tags,
            hashes,
            checks,
            tags_on_both_sides=both,
        )
        dataset.save()
    dataset = Dataset.load(output)
    _report_differences(work, dataset, report)
    return dataset


def _report_differences(work: Work, dataset: Dataset, report: Callable[[str], None]) -> None:
    vocabulary, decomposed = dataset.target_vocabulary, dataset.decomposed

    def written(language, texts):
        normal = vocabulary.normalize(texts)
        return [as_written(text, "", language, decomposed) for text in normal]

    lines = [
        line
        for pair in work.each_pair()
        for line in differences(
            pair.pair.name,
            {split: pair.sampled_targets(split) for split in pair.pair.files},
            functools.partial(written, pair.pair.target),
        )
    ]
    for line in lines[:_LINES] + [f"and {len(lines) - _LINES} more"] * (len(lines) > _LINES):
        report(line)


def format_dataset(dataset: Dataset) -> str:
    """A table of each pair's examples and the counts of checks, the largest pair first."""
    kinds = list(next(iter(dataset.checks.values())))
    rows = [
        [pair.name, *(f"{pair.examples.get(split, 0)}" for split in SPLITS)]
        + [f"{dataset.checks[pair.name][kind]}" for kind in kinds]
        for pair in sorted(dataset.pairs, key=lambda pair: -pair.examples.get("train", 0))
    ]
    sizes = (
        f"source vocabulary {dataset.source_vocabulary.size}, "
        f"target vocabulary {dataset.target_vocabulary.size}"
    )
    table = Table(("pair", *SPLITS, *kinds), rows)
    return f"{table.to_text()}\n{sizes}"


def _directions(pairs: Sequence[CorpusPair], both: bool) -> list[CorpusPair]:
    """The pairs in order of name; with `both` also each one's reverse, split by split."""
    found = {pair.name: pair for pair in pairs}
    for pair in pairs if both else ():
        turned = pair.reverse()
        found[turned.name] = found.get(turned.name, turned).completed(turned)
    return [found[name] for name in sorted(found)]
