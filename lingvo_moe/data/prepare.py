"""Raw parallel text to a dataset: check, train vocabularies, tokenise, write."""

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from lingvo_moe.data.corpora import CleanPair, CorpusPair, SentencePair, clean, find_pairs
from lingvo_moe.data.dataset import (
    FILE,
    SPLITS,
    Dataset,
    Example,
    PairInfo,
    shard_bounds,
    write_shard,
)
from lingvo_moe.data.vocabulary import EOS, Vocabulary, train_vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareParams:
    """How to prepare.

    Attributes:
        source_vocab_size, target_vocab_size: pieces at most.
        joint_vocab: one vocabulary of source_vocab_size pieces for both sides.
        temperature: of sampling languages for the vocabularies; 1 by size, large evenly.
        character_coverage: share of characters that get a piece; the rest fall back to bytes.
        max_length: longer training examples, in tokens of either side, are left out and counted.
        both_directions: also translate each pair the other way, unless the corpus itself does.
        shard_size: examples in a TFRecord file, at most.
        seed: of sampling for the vocabularies.
    """

    source_vocab_size: int = 8000
    target_vocab_size: int = 4000
    joint_vocab: bool = False
    temperature: float = 5.0
    character_coverage: float = 0.9995
    max_length: int = 256
    both_directions: bool = False
    shard_size: int = 50_000
    seed: int = 1


def prepare(
    corpus: Path,
    output: Path,
    params: PrepareParams,
    *,
    overwrite: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> Dataset:
    """Makes a dataset; it appears under output whole or not at all.

    Reads the corpus twice, one pair in memory at a time: for the vocabularies, then to tokenise.

    Args:
        corpus: see `corpora.find_pairs`.
        output: the directory to make.
        params: sizes and choices.
        overwrite: replace the dataset that is there.
        report: takes lines of progress.

    Raises:
        ValueError: something is wrong with the corpus, or output exists.
    """
    _check_output(output, overwrite)
    pairs = _directions(find_pairs(corpus), params.both_directions)
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    source, target = _train_vocabularies(pairs, params, report)
    source.save(partial / "source.model")
    target.save(partial / "target.model")
    tags = {language: source.tag(language) for language in _targets(pairs)}
    writer = _Writer(partial, params, source, target, tags)
    infos, checks = [], {}
    for pair in pairs:
        info, checks[pair.name] = writer.write(pair, len(infos))
        infos.append(info)
        report(f"{pair.name}: {info.examples.get('train', 0)} training examples")
    hashes = {"source": source.sha256, "target": target.sha256}
    Dataset(partial, tuple(infos), tags, hashes, checks).save()
    if overwrite:
        shutil.rmtree(output, ignore_errors=True)
    elif output.exists():
        output.rmdir()
    os.rename(partial, output)
    return Dataset.load(output)


def _check_output(output: Path, overwrite: bool) -> None:
    if not output.exists() or not any(output.iterdir()):
        return
    if not (output / FILE).exists():
        raise ValueError(f"{output} holds something other than a dataset; pass another --output.")
    if not overwrite:
        raise ValueError(f"{output} is not empty; pass --overwrite or another --output.")


def format_summary(dataset: Dataset) -> str:
    """A table: what each pair has and what was left out of it."""
    kinds = list(next(iter(dataset.checks.values())))
    header = ["pair", *SPLITS, *kinds]
    rows = [
        [pair.name, *(str(pair.examples.get(split, 0)) for split in SPLITS)]
        + [str(dataset.checks[pair.name][kind]) for kind in kinds]
        for pair in sorted(dataset.pairs, key=lambda p: -p.examples.get("train", 0))
    ]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = ["  ".join(c.rjust(w) for c, w in zip(r, widths, strict=True)) for r in [header, *rows]]
    sizes = (
        f"source vocabulary {dataset.source_vocabulary.size}, "
        f"target vocabulary {dataset.target_vocabulary.size}"
    )
    return "\n".join([*lines, sizes])


def _directions(pairs: Sequence[CorpusPair], both: bool) -> list[CorpusPair]:
    if not both:
        return list(pairs)
    names = {pair.name for pair in pairs}
    turned = [_turned(p) for p in pairs if f"{p.target}-{p.source}" not in names]
    return sorted([*pairs, *turned], key=lambda pair: pair.name)


def _turned(pair: CorpusPair) -> CorpusPair:
    tsv = [split for split, files in pair.files.items() if len(files) == 1]
    if tsv:
        raise ValueError(
            f"{pair.name} is TSV; both directions need two files a pair. Split it with cut -f."
        )
    files = {split: tuple(reversed(files)) for split, files in pair.files.items()}
    return CorpusPair(f"{pair.target}-{pair.source}", pair.target, pair.source, files)


def _targets(pairs: Sequence[CorpusPair]) -> list[str]:
    return sorted({pair.target for pair in pairs})


def _clean(pair: CorpusPair) -> CleanPair:
    return clean({split: pair.read(split) for split in SPLITS if split in pair.files})


def _train_vocabularies(pairs, params, report) -> tuple[Vocabulary, Vocabulary]:
    sources: dict[str, list[str]] = {}
    targets: dict[str, list[str]] = {}
    for pair in pairs:
        train = _clean(pair).lines["train"]
        sources.setdefault(pair.source, []).extend(line.source for line in train)
        targets.setdefault(pair.target, []).extend(line.target for line in train)
    options = {
        "tags": _targets(pairs),
        "temperature": params.temperature,
        "character_coverage": params.character_coverage,
        "seed": params.seed,
    }
    report(f"training vocabularies on {sum(map(len, sources.values()))} sentence pairs")
    if params.joint_vocab:
        texts = {k: sources.get(k, []) + targets.get(k, []) for k in {**sources, **targets}}
        joint = train_vocabulary(texts, params.source_vocab_size, **options)
        return joint, joint
    return (
        train_vocabulary(sources, params.source_vocab_size, **options),
        train_vocabulary(targets, params.target_vocab_size, **{**options, "tags": ()}),
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
        for line, source, target in zip(lines, sources, targets, strict=True):
            source_ids = np.array([self.tags[pair.target], *source, EOS], np.int32)
            target_ids = np.array([*target, EOS], np.int32)
            if split != "train":
                yield Example(source_ids, target_ids, line.source, line.target)
            elif max(len(source_ids), len(target_ids)) <= self.params.max_length:
                yield Example(source_ids, target_ids)

    def _write_shards(self, name, split, examples) -> list[str]:
        count = -(-len(examples) // self.params.shard_size)
        names = [f"{split}/{name}-{i:05d}-of-{count:05d}.tfrecord" for i in range(count)]
        bounds = shard_bounds(len(examples), count)
        for shard, start, end in zip(names, bounds, bounds[1:], strict=False):
            write_shard(self.directory / shard, examples[start:end])
        return names
