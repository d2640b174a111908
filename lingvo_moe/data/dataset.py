"""A prepared dataset on disk: dataset.json, vocabularies, TFRecord shards."""

import dataclasses
import difflib
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_moe.data.vocabulary import Vocabulary

FORMAT = 1
FILE = "dataset.json"
SPLITS = ("train", "dev", "test")
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
        index: its place in the dataset's order.
        examples: split -> how many examples.
        shards: split -> file names below the dataset's directory.
    """

    name: str
    source: str
    target: str
    index: int
    examples: dict[str, int]
    shards: dict[str, list[str]]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A prepared dataset.

    Attributes:
        directory: where it lies.
        pairs: its language pairs, in order of name.
        tags: target language -> id of its tag in the source vocabulary.
        hashes: "source" and "target" -> SHA-256 of the vocabulary.
        checks: pair -> what preparation found and left out, by kind.
    """

    directory: Path
    pairs: tuple[PairInfo, ...]
    tags: dict[str, int]
    hashes: dict[str, str]
    checks: dict[str, dict[str, int]]

    @staticmethod
    def load(directory: Path) -> "Dataset":
        """Reads a dataset's description.

        Raises:
            ValueError: there is none, or it is of another format.
        """
        path = directory / FILE
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{directory} holds no dataset: {path} cannot be read ({error}). Make one with "
                f"lingvo-moe-prepare."
            ) from error
        if fields.get("format") != FORMAT:
            raise ValueError(
                f"{path} is of format {fields.get('format')!r}; this version reads {FORMAT}. "
                f"Prepare the data again."
            )
        pairs = tuple(PairInfo(index=i, **pair) for i, pair in enumerate(fields["pairs"]))
        hashes = {side: entry["sha256"] for side, entry in fields["vocabularies"].items()}
        return Dataset(directory, pairs, fields["tags"], hashes, fields["checks"])

    def save(self) -> None:
        """Writes dataset.json beside the vocabularies and shards."""
        pairs = [dataclasses.asdict(pair) for pair in self.pairs]
        for pair in pairs:
            del pair["index"]
        fields = {
            "format": FORMAT,
            "pairs": pairs,
            "tags": self.tags,
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
        }
        text = json.dumps(fields, indent=1, ensure_ascii=False)
        (self.directory / FILE).write_text(text, encoding="utf-8")

    @functools.cached_property
    def source_vocabulary(self) -> Vocabulary:
        """The vocabulary of sources, with the tags."""
        return self._vocabulary("source")

    @functools.cached_property
    def target_vocabulary(self) -> Vocabulary:
        """The vocabulary of targets."""
        return self._vocabulary("target")

    def _vocabulary(self, side):
        path = self.directory / f"{side}.model"
        vocabulary = Vocabulary.load(path)
        if vocabulary.sha256 != self.hashes[side]:
            raise ValueError(
                f"{path} is not the vocabulary that {FILE} names: its SHA-256 is "
                f"{vocabulary.sha256[:12]}…, not {self.hashes[side][:12]}…. The ids of this "
                f"dataset mean other pieces; restore the file or prepare the data again."
            )
        return vocabulary

    def pair(self, name: str) -> PairInfo:
        """The pair of that name.

        Raises:
            ValueError: there is none; the message offers the nearest.
        """
        names = [pair.name for pair in self.pairs]
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.3) or names[:8]
            raise ValueError(f"Unknown pair {name!r}; this dataset has {', '.join(near)} …")
        return self.pairs[names.index(name)]

    def examples(self, split: str, name: str) -> list[Example]:
        """All examples of a pair's split."""
        shards = self.pair(name).shards.get(split, [])
        return [example for shard in shards for example in self.read_shard(shard)]

    def read_shard(self, shard: str) -> list[Example]:
        """The examples of one TFRecord file.

        Raises:
            OSError: it is missing or damaged.
        """
        path = self.directory / shard
        features = {
            "source": tf.io.RaggedFeature(tf.int64),
            "target": tf.io.RaggedFeature(tf.int64),
            "source_text": tf.io.FixedLenFeature([], tf.string, ""),
            "target_text": tf.io.FixedLenFeature([], tf.string, ""),
        }
        try:
            batches = tf.data.TFRecordDataset(str(path)).batch(_BATCH)
            parsed = [tf.io.parse_example(batch, features) for batch in batches]
        except tf.errors.OpError as error:
            raise OSError(
                f"Shard {path} is missing or damaged ({error.message}); prepare the data again."
            ) from error
        return [example for batch in parsed for example in _to_examples(batch)]


def shard_bounds(examples: int, shards: int) -> list[int]:
    """Where each of a split's shards begins, and the end: all are as long, to one example."""
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
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def _to_examples(batch) -> list[Example]:
    sources, targets = (
        np.split(batch[side].values.numpy().astype(np.int32), batch[side].row_splits.numpy()[1:-1])
        for side in ("source", "target")
    )
    texts = ([t.decode("utf-8") for t in batch[f"{s}_text"].numpy()] for s in ("source", "target"))
    return [Example(*fields) for fields in zip(sources, targets, *texts, strict=True)]
