"""Makes a dataset from raw parallel text: cleaning, vocabularies, tokenising, shards."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from lingvo_moe.core.fields import (
    NonNegativeInt,
    Params,
    PositiveFloat,
    PositiveInt,
    Rule,
)
from lingvo_moe.core.files import check_output, new_directory
from lingvo_moe.data.corpora import CleanPair, CorpusPair, SentencePair, clean, find_pairs
from lingvo_moe.data.dataset import (
    SIDES,
    SPLITS,
    Dataset,
    Example,
    PairInfo,
    shard_bounds,
    write_shard,
)
from lingvo_moe.data.extension import extend_vocabulary
from lingvo_moe.data.language_tags import OnBothSides, OnSource
from lingvo_moe.data.synthetic import SyntheticCorpus
from lingvo_moe.data.vocabulary import UNK, Normalization, Vocabulary, train_vocabulary
from lingvo_moe.reporting.table import Table

MAKER = "lingvo-moe-prepare"

_Size = Annotated[
    int,
    Rule("from 300 to 1000000, 256 of them single bytes", lambda size: 300 <= size <= 1_000_000),
]
_Coverage = Annotated[float, Rule("from 0.98 to 1", lambda share: 0.98 <= share <= 1)]
_Length = Annotated[int, Rule(">= 3: a tag, one token and the end", lambda length: length >= 3)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareParams(Params):
    """The params of preparation.

    Attributes:
        source_vocab_size, target_vocab_size: largest number of pieces.
        source_normalization, target_normalization: the change of texts before they are split into
            pieces, one of `vocabulary.Normalization`. A model cannot write characters that the
            target's normalization replaces.
        extend: a directory with source.model and target.model, such as a logdir or a dataset, whose
            vocabularies are extended for the new text (see data.extension); sizes and normalization
            are then ignored. "" to train new ones.
        new_pieces: largest number of pieces that extending adds to a vocabulary, besides tags.
        joint_vocab: one vocabulary for both sides, of source_vocab_size pieces, with
            target_normalization.
        temperature: T of sampling languages for the vocabularies, by size^(1/T).
        character_coverage: share of characters that get a piece; the rest are written as bytes.
        max_length: longer training examples, in tokens of either side, are left out and counted.
        tags_on_both_sides: whether each side begins with its language's tag, as models that were
            imported read and write; see data.language_tags.
        both_directions: whether to add the reverse of each pair that the corpus does not have.
        shard_size: largest number of examples in a file of records.
        seed: of sampling for the vocabularies.

    Raises:
        ValueError: a value is out of range.
    """

    source_vocab_size: _Size = 8000
    target_vocab_size: _Size = 4000
    source_normalization: Normalization = "nmt_nfkc"
    target_normalization: Normalization = "identity"
    extend: str = ""
    new_pieces: NonNegativeInt = 1000
    joint_vocab: bool = False
    temperature: PositiveFloat = 5.0
    character_coverage: _Coverage = 0.9995
    max_length: _Length = 256
    tags_on_both_sides: bool = False
    both_directions: bool = False
    shard_size: PositiveInt = 50_000
    seed: NonNegativeInt = 1


_SYNTHETIC = SyntheticCorpus()


def prepare_synthetic(
    output: Path,
    params: PrepareParams,
    *,
    raw: SyntheticCorpus = _SYNTHETIC,
    overwrite: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> Dataset:
    """Writes the synthetic corpus beside output, as OUTPUT_raw, and makes a dataset of it.

    Args:
        output, params, overwrite, report: as for `prepare`.
        raw: the corpus.

    Raises:
        ValueError: output exists, or OUTPUT_raw holds something other than a synthetic corpus.
    """
    check_output(output, MAKER, overwrite)
    corpus = output.with_name(f"{output.name}_raw")
    raw.write(corpus, overwrite=True)
    report(f"Wrote the synthetic corpus to {corpus}.")
    return prepare(corpus, output, params, overwrite=overwrite, report=report)


def prepare(
    corpus: Path,
    output: Path,
    params: PrepareParams,
    *,
    overwrite: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> Dataset:
    """Makes a dataset, which appears under output when it is complete.

    It reads the corpus twice, one pair at a time: for the vocabularies, and to tokenise.

    Args:
        corpus: see `corpora.find_pairs`.
        output: the directory to make; it must not contain the corpus or be inside it.
        params: see PrepareParams.
        overwrite: whether to replace an earlier dataset.
        report: takes lines of progress and warnings.

    Raises:
        ValueError: something is wrong with the corpus, or output exists.
        OSError: something cannot be read or written.
    """
    _check_apart(corpus, output)
    pairs = _directions(find_pairs(corpus, report), params.both_directions)
    with new_directory(output, MAKER, overwrite) as partial:
        _write_dataset(pairs, partial, params, report)
    return Dataset.load(output)


def _check_apart(corpus, output):
    ours, theirs = output.resolve(), corpus.resolve()
    if ours.is_relative_to(theirs) or theirs.is_relative_to(ours):
        raise ValueError(
            f"The output {output} and the corpus {corpus} must not contain one another; give an "
            f"output outside the corpus."
        )


def _write_dataset(pairs, directory, params, report):
    source, target = _train_vocabularies(pairs, params, report)
    source.save(directory / "source.model")
    target.save(directory / "target.model")
    tags = {language: source.tag(language) for language in _tagged(pairs, params)}
    writer = _Writer(directory, params, source, target, tags)
    infos: list[PairInfo] = []
    checks = {}
    for pair in pairs:
        info, checks[pair.name] = writer.write(pair, len(infos))
        infos.append(info)
        report(f"{pair.name}: {info.examples.get('train', 0)} training examples")
    if not any(info.examples.get("train") for info in infos):
        raise ValueError(
            f"No training example is left: all are longer than max_length={params.max_length}. "
            f"Raise it, or give lines of single sentences."
        )
    hashes = {"source": source.sha256, "target": target.sha256}
    both = params.tags_on_both_sides
    Dataset(directory, tuple(infos), tags, hashes, checks, tags_on_both_sides=both).save()


def format_summary(dataset: Dataset) -> str:
    """A table of each pair's examples and the counts of checks."""
    kinds = list(next(iter(dataset.checks.values())))
    rows = [
        [pair.name, *(str(pair.examples.get(split, 0)) for split in SPLITS)]
        + [str(dataset.checks[pair.name][kind]) for kind in kinds]
        for pair in sorted(dataset.pairs, key=lambda p: -p.examples.get("train", 0))
    ]
    sizes = (
        f"source vocabulary {dataset.source_vocabulary.size}, "
        f"target vocabulary {dataset.target_vocabulary.size}"
    )
    return "\n".join([Table(("pair", *SPLITS, *kinds), rows).to_text(), sizes])


def _directions(pairs: Sequence[CorpusPair], both: bool) -> list[CorpusPair]:
    if not both:
        return list(pairs)
    names = {pair.name for pair in pairs}
    reversed_pairs = [turned for pair in pairs if (turned := pair.reverse()).name not in names]
    return sorted([*pairs, *reversed_pairs], key=lambda pair: pair.name)


def _targets(pairs: Sequence[CorpusPair]) -> list[str]:
    return sorted({pair.target for pair in pairs})


def _tagged(pairs, params) -> list[str]:
    """The languages with a tag: those of targets, or of both sides."""
    sources = {pair.source for pair in pairs} if params.tags_on_both_sides else set()
    return sorted({*_targets(pairs), *sources})


def _clean(pair: CorpusPair) -> CleanPair:
    return clean({split: pair.read(split) for split in SPLITS if split in pair.files})


def _train_vocabularies(pairs, params, report) -> tuple[Vocabulary, Vocabulary]:
    sources: dict[str, list[str]] = {}
    targets: dict[str, list[str]] = {}
    for pair in pairs:
        train = _clean(pair).lines["train"]
        sources.setdefault(pair.source, []).extend(line.source for line in train)
        targets.setdefault(pair.target, []).extend(line.target for line in train)
    tags = _tagged(pairs, params)
    options = {
        "temperature": params.temperature,
        "character_coverage": params.character_coverage,
        "seed": params.seed,
    }
    report(f"training vocabularies on {sum(map(len, sources.values()))} sentence pairs")
    both = {k: sources.get(k, []) + targets.get(k, []) for k in {**sources, **targets}}
    if params.extend:
        return _extended(params, sources, targets, both, tags, options)
    if params.joint_vocab:
        options["normalization"] = params.target_normalization
        joint = train_vocabulary(both, params.source_vocab_size, tags=tags, **options)
        return joint, joint
    return (
        train_vocabulary(
            sources,
            params.source_vocab_size,
            tags=tags,
            normalization=params.source_normalization,
            **options,
        ),
        train_vocabulary(
            targets, params.target_vocab_size, normalization=params.target_normalization, **options
        ),
    )


def _extended(params, sources, targets, both, tags, options) -> tuple[Vocabulary, Vocabulary]:
    old = [Vocabulary.load(Path(params.extend) / f"{side}.model") for side in SIDES]
    if old[0] == old[1]:
        joint = extend_vocabulary(old[0], both, params.new_pieces, tags=tags, **options)
        return joint, joint
    if params.joint_vocab:
        raise ValueError(
            f"{params.extend} has two vocabularies, which cannot be extended as one; leave "
            f"joint_vocab out."
        )
    return (
        extend_vocabulary(old[0], sources, params.new_pieces, tags=tags, **options),
        extend_vocabulary(old[1], targets, params.new_pieces, **options),
    )


@dataclasses.dataclass(frozen=True)
class _Writer:
    directory: Path
    params: PrepareParams
    source: Vocabulary
    target: Vocabulary
    tags: dict[str, int]

    def write(self, pair: CorpusPair, index: int) -> tuple[PairInfo, dict[str, int]]:
        lines, checks = _clean(pair)
        examples, shards, too_long = {}, {}, 0
        for split, split_lines in lines.items():
            kept = list(self._examples(pair, split, split_lines))
            too_long += len(split_lines) - len(kept)
            examples[split] = len(kept)
            shards[split] = self._write_shards(pair.name, split, kept)
        info = PairInfo(pair.name, pair.source, pair.target, index, examples, shards)
        return info, {**checks, "too_long": too_long}

    def _examples(self, pair, split, lines: list[SentencePair]) -> Iterator[Example]:
        sources = self.source.encode([line.source for line in lines])
        targets = self.target.encode([line.target for line in lines])
        layout = OnBothSides() if self.params.tags_on_both_sides else OnSource()
        tags = self.tags.get(pair.source, UNK), self.tags[pair.target]
        for line, source, target in zip(lines, sources, targets, strict=True):
            ids = layout.example(tags, source, target)
            source_ids, target_ids = (np.array(side, np.int32) for side in ids)
            if split != "train":
                yield Example(source_ids, target_ids, line.source, line.target)
            elif max(len(source_ids), len(target_ids)) <= self.params.max_length:
                yield Example(source_ids, target_ids)

    def _write_shards(self, name, split, examples) -> list[str]:
        count = -(-len(examples) // self.params.shard_size)
        names = [f"{split}/{name}-{i:05d}-of-{count:05d}.records" for i in range(count)]
        bounds = shard_bounds(len(examples), count)
        for shard, start, end in zip(names, bounds, bounds[1:], strict=False):
            write_shard(self.directory / shard, examples[start:end])
        return names
