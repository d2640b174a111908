"""A prepared dataset on disk: dataset.json, vocabularies, TFRecord shards."""

import dataclasses
import difflib
import functools
import hashlib
import json
import typing
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_moe.core.files import check_fields, read_json, write_whole
from lingvo_moe.data.vocabulary import Vocabulary

FORMAT = 1
FILE = "dataset.json"
SPLITS = ("train", "dev", "test")
SIDES = ("source", "target")
_BATCH = 4096


class Example(NamedTuple):
    """One sentence pair; the texts are empty in train.

    Attributes:
        source: int32 ids: the target language's tag, the tokens, EOS.
        target: int32 ids: the tokens, EOS.
    """

    source: np.ndarray
    target: np.ndarray
    source_text: str = ""
    target_text: str = ""


@dataclasses.dataclass(frozen=True)
class PairInfo:
    """A language pair of a dataset.

    Attributes:
        name: "de-en".
        source, target: its languages.
        index: its position in the order of the dataset.
        examples: split -> number of examples.
        shards: split -> file names below the dataset's directory.

    Raises:
        ValueError: a name that cannot be a file's, or a negative number of examples.
    """

    name: str
    source: str
    target: str
    index: int
    examples: dict[str, int]
    shards: dict[str, list[str]]

    def __post_init__(self):
        check_pair_name(self.name)
        if not all(0 <= count < 2**48 for count in self.examples.values()):
            raise ValueError(f"Pair {self.name} cannot have {self.examples!r:.100} examples.")


def check_pair_name(name: str) -> None:
    """Checks that files and directories can have the name of a language pair.

    Raises:
        ValueError: it has a slash or a control character, begins with a dot, or is too long.
    """
    bad = any(unicodedata.category(c) in ("Cc", "Cs") or c == "/" for c in name)
    if bad or not name or name[0] == "." or len(name.encode()) > 200:
        raise ValueError(
            f"{name!r:.60} cannot name a language pair: files are named after it. Use at most 200 "
            f"bytes, no slash or control character, and no dot in front, such as de-en."
        )


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A prepared dataset.

    Attributes:
        directory: its directory.
        pairs: its language pairs, in order of name.
        tags: target language -> id of its tag in the source vocabulary.
        hashes: "source" and "target" -> SHA-256 of the vocabulary.
        checks: pair -> counts of the checks of preparation, by kind.
        checksums: shard -> SHA-256 of the file; {} for a dataset of an older version.
        tags_on_both_sides: whether each side begins with the tag of its language.
    """

    directory: Path
    pairs: tuple[PairInfo, ...]
    tags: dict[str, int]
    hashes: dict[str, str]
    checks: dict[str, dict[str, int]]
    checksums: dict[str, str] = dataclasses.field(default_factory=dict)
    tags_on_both_sides: bool = False

    @staticmethod
    def load(directory: Path) -> "Dataset":
        """Reads a dataset's description.

        Raises:
            ValueError: the file is missing, has another format, or contradicts itself.
        """
        path = directory / FILE
        try:
            fields = read_json(path)
        except ValueError as error:
            raise ValueError(
                f"{directory} holds no dataset: {error} Make one with lingvo-moe-prepare."
            ) from error
        if fields.get("format") != FORMAT:
            raise ValueError(
                f"{path} is of format {fields.get('format')!r}; this version reads {FORMAT}. "
                f"Prepare the data again."
            )
        try:
            return _from_json(directory, fields)
        except ValueError as error:
            raise ValueError(f"{error} Restore {path} or prepare the data again.") from error

    def save(self) -> None:
        """Writes dataset.json beside the vocabularies and shards, with their checksums."""
        pairs = [dataclasses.asdict(pair) for pair in self.pairs]
        for pair in pairs:
            del pair["index"]
        fields = {
            "format": FORMAT,
            "pairs": pairs,
            "tags": self.tags,
            "tags_on_both_sides": self.tags_on_both_sides,
            "vocabularies": {
                side: {
                    "file": f"{side}.model",
                    "size": vocabulary.size,
                    "normalization": vocabulary.normalization,
                    "sha256": digest,
                }
                for side, vocabulary, digest in (
                    ("source", self.source_vocabulary, self.hashes["source"]),
                    ("target", self.target_vocabulary, self.hashes["target"]),
                )
            },
            "checks": self.checks,
            "checksums": self._checksums(),
        }
        write_whole(self.directory / FILE, json.dumps(fields, indent=1, ensure_ascii=False))

    @functools.cached_property
    def sha256(self) -> str:
        """SHA-256 of the data, in hexadecimal: pairs, tags, vocabularies and every example.

        If dataset.json has no checksums of shards, all shards are read to compute them.
        """
        content = {
            "pairs": [(p.name, p.source, p.target, p.examples, p.shards) for p in self.pairs],
            "tags": self.tags,
            "vocabularies": self.hashes,
            "checksums": self.checksums or self._checksums(),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _checksums(self):
        shards = [s for pair in self.pairs for split in pair.shards.values() for s in split]
        return {shard: self._checksum(shard) for shard in shards}

    def _checksum(self, shard):
        path = self.directory / shard
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise OSError(
                f"Shard {path} is missing or damaged ({error}); prepare the data again."
            ) from error

    @functools.cached_property
    def source_vocabulary(self) -> Vocabulary:
        """The vocabulary of sources, with the tags."""
        return Vocabulary.load(self.directory / "source.model", self.hashes["source"])

    @functools.cached_property
    def target_vocabulary(self) -> Vocabulary:
        """The vocabulary of targets."""
        return Vocabulary.load(self.directory / "target.model", self.hashes["target"])

    def pair(self, name: str) -> PairInfo:
        """The pair of that name.

        Raises:
            ValueError: there is none; the message lists the most similar names.
        """
        names = [pair.name for pair in self.pairs]
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.3) or names[:8]
            raise ValueError(f"Unknown pair {name!r}; this dataset has {', '.join(near)} …")
        return self.pairs[names.index(name)]

    def examples(self, split: str, name: str) -> list[Example]:
        """All examples of a pair's split.

        Raises:
            OSError: a shard is missing or damaged, or there are more or fewer examples.
        """
        pair = self.pair(name)
        shards = pair.shards.get(split, [])
        examples = [example for shard in shards for example in self.read_shard(shard)]
        if len(examples) != pair.examples.get(split, 0):
            raise OSError(
                f"The {split} shards of {name} in {self.directory} have {len(examples)} examples "
                f"where {FILE} says {pair.examples.get(split, 0)}; prepare the data again."
            )
        return examples

    def first_examples(self, split: str, name: str, count: int) -> list[Example]:
        """The first examples of a pair's split, at most `count`; reads no more than these.

        Raises:
            OSError: a shard is missing or damaged.
        """
        found: list[Example] = []
        for shard in self.pair(name).shards.get(split, []):
            if len(found) < count:
                found += self.read_shard(shard, count - len(found))
        return found

    def read_shard(self, shard: str, count: int | None = None) -> list[Example]:
        """The examples of one TFRecord file.

        Args:
            shard: its path below the directory.
            count: number of examples to read; None for all. Only then its SHA-256 is checked.

        Raises:
            OSError: it is missing or damaged, is not the file that dataset.json describes, or has
                ids that its vocabulary does not have.
        """
        path = self.directory / shard
        features = {
            "source": tf.io.RaggedFeature(tf.int64),
            "target": tf.io.RaggedFeature(tf.int64),
            "source_text": tf.io.FixedLenFeature([], tf.string, ""),
            "target_text": tf.io.FixedLenFeature([], tf.string, ""),
        }
        try:
            batches = tf.data.TFRecordDataset(str(path)).take(count or -1).batch(_BATCH)
            parsed = [tf.io.parse_example(batch, features) for batch in batches]
        except tf.errors.OpError as error:
            raise OSError(
                f"Shard {path} is missing or damaged ({error.message}); prepare the data again."
            ) from error
        if count is None and shard in self.checksums:
            self._check_content(shard)
        self._check_ids(path, parsed)
        try:
            return [example for batch in parsed for example in _to_examples(batch)]
        except UnicodeDecodeError as error:
            raise OSError(
                f"Shard {path} has text that is not UTF-8 ({error.reason}); prepare the data again."
            ) from error

    def _check_content(self, shard):
        found = self._checksum(shard)
        if found != self.checksums[shard]:
            raise OSError(
                f"Shard {self.directory / shard} is not the file that {FILE} describes: its "
                f"SHA-256 is {found[:12]}…, not {self.checksums[shard][:12]}…. Restore it or "
                f"prepare the data again."
            )

    def _check_ids(self, path, parsed):
        for side in self.hashes:
            size = getattr(self, f"{side}_vocabulary").size
            for batch in parsed:
                ids = batch[side].values.numpy()
                if ids.size and not 0 <= ids.min() <= ids.max() < size:
                    raise OSError(
                        f"Shard {path} has {side} ids from {ids.min()} to {ids.max()}; the "
                        f"vocabulary has 0 to {size - 1}. Prepare the data again."
                    )


def _from_json(directory, fields) -> Dataset:
    """The Dataset that the fields of dataset.json describe; ValueError if they contradict."""
    hints = {"pairs": list, "tags": dict[str, int], "vocabularies": dict}
    check_fields(fields, hints | {"checks": dict[str, dict[str, int]]}, FILE)
    checksums = fields.get("checksums", {})
    check_fields({"checksums": checksums}, {"checksums": dict[str, str]}, FILE)
    check_fields(fields["vocabularies"], dict.fromkeys(SIDES, dict), f"{FILE}: vocabularies")
    for side in SIDES:
        source = f"{FILE}: vocabularies: {side}"
        check_fields(fields["vocabularies"][side], {"sha256": str}, source)
    pairs = tuple(_pair_from_json(i, pair) for i, pair in enumerate(fields["pairs"]))
    repeated = [name for name, n in Counter(pair.name for pair in pairs).items() if n > 1]
    if repeated:
        raise ValueError(f"{FILE} has pair {repeated[0]} more than once.")
    for pair in pairs:
        if pair.target not in fields["tags"]:
            raise ValueError(f"{FILE} has pair {pair.name} and no tag of language {pair.target!r}.")
    hashes = {side: fields["vocabularies"][side]["sha256"] for side in SIDES}
    both = fields.get("tags_on_both_sides", False)
    if not isinstance(both, bool):
        raise ValueError(f"{FILE}: 'tags_on_both_sides' must be true or false, got {both!r:.60}.")
    return Dataset(directory, pairs, fields["tags"], hashes, fields["checks"], checksums, both)


def _pair_from_json(index, fields) -> PairInfo:
    hints = typing.get_type_hints(PairInfo)
    del hints["index"]
    check_fields(fields, hints, f"{FILE}: pairs[{index}]")
    pair = PairInfo(index=index, **{name: fields[name] for name in hints})
    for shards in pair.shards.values():
        for shard in shards:
            if shard.startswith("/") or ".." in shard.split("/"):
                raise ValueError(f"{FILE}: shard {shard!r} of {pair.name} is outside the dataset.")
    for split, count in pair.examples.items():
        if count and not pair.shards.get(split):
            raise ValueError(f"{FILE} has {split} examples of {pair.name} and no shard of them.")
    return pair


def shard_bounds(examples: int, shards: int) -> list[int]:
    """The start of each shard of a split, and the end; sizes differ by at most one example."""
    return [i * examples // shards for i in range(shards + 1)] if shards else [0]


def write_shard(path: Path, examples: Sequence[Example]) -> None:
    """Writes one TFRecord file of tf.train.Examples.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for example in examples:
                writer.write(_serialize(example))
    except tf.errors.OpError as error:
        raise OSError(f"{path} cannot be written ({error.message}).") from error


def _serialize(example):
    feature = {
        "source": tf.train.Feature(int64_list=tf.train.Int64List(value=example.source)),
        "target": tf.train.Feature(int64_list=tf.train.Int64List(value=example.target)),
    }
    for name in ("source_text", "target_text"):
        if text := getattr(example, name):
            value = [text.encode("utf-8")]
            feature[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
    record = tf.train.Example(features=tf.train.Features(feature=feature))
    return record.SerializeToString(deterministic=True)  # the same data has the same checksum


def _to_examples(batch) -> list[Example]:
    sources, targets = (
        np.split(batch[side].values.numpy().astype(np.int32), batch[side].row_splits.numpy()[1:-1])
        for side in ("source", "target")
    )
    texts = ([t.decode("utf-8") for t in batch[f"{s}_text"].numpy()] for s in ("source", "target"))
    return [Example(*fields) for fields in zip(sources, targets, *texts, strict=True)]
