"""A prepared dataset on disk: dataset.json, vocabularies, shards of records."""

import bisect
import collections
import dataclasses
import difflib
import functools
import hashlib
import itertools
import json
import re
import resource
import typing
from pathlib import Path

from lingvo_moe.config.fields import check_fields
from lingvo_moe.data.records import Example, Records
from lingvo_moe.data.surface import is_decomposed
from lingvo_moe.data.vocabulary import Vocabulary
from lingvo_moe.system.files import check_file_name, read_json, write_whole
from lingvo_moe.system.lines import first_of

FORMAT = 4
FILE = "dataset.json"
SPLITS = ("train", "dev", "test")
SIDES = ("source", "target")
_FORM_LINES = 300  # of each pair's dev that show the form of its accents


@dataclasses.dataclass(frozen=True)
class PairInfo:
    """A language pair of a dataset. Raises ValueError: a name that cannot be a file's."""

    name: str  # "de-en"
    # source, target: its languages
    source: str
    target: str
    index: int  # its position in the order of the dataset
    examples: dict[str, int]  # split -> number of examples
    # split -> file names below the dataset's directory -> numbers of examples
    shards: dict[str, dict[str, int]]
    # "train" and "dev" -> the table of the lengths of its lines; see data.lengths. It has also the
    # lines that preparation leaves out as too long.
    lengths: dict[str, list[list[int]]] = dataclasses.field(default_factory=dict)
    # of target to source tokens, that 99.9 % of train and dev have at most; 1.5 to 4, or 0 without
    # lines
    length_ratio: float = 0.0
    # the smallest hashes of the targets of train; they tell how many targets pairs share (see
    # data.distinct)
    targets: list[int] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        check_pair_name(self.name)


def check_pair_name(name: str) -> None:
    """Checks that files and directories can have the name of a language pair. Raises ValueError:
    it has a slash or a control character, begins with a dot, or is too long."""
    check_file_name(name, "a language pair", "de-en")


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A prepared dataset."""

    directory: Path  # its directory
    pairs: tuple[PairInfo, ...]  # its language pairs, in order of name
    tags: dict[str, int]  # target language -> id of its tag in the source vocabulary
    hashes: dict[str, str]  # "source" and "target" -> SHA-256 of the vocabulary
    checks: dict[str, dict[str, int]]  # pair -> counts of the checks of preparation, by kind
    # shard -> its checksum (see data.records); {} before `save`
    checksums: dict[str, str] = dataclasses.field(default_factory=dict)
    tags_on_both_sides: bool = False  # whether each side begins with the tag of its language

    @staticmethod
    def load(directory: Path) -> "Dataset":
        """Reads a dataset's description. Raises ValueError: the file is missing, has another
        format, or contradicts itself."""
        path = directory / FILE
        try:
            fields = read_json(path)
            if fields.get("format") != FORMAT:
                raise ValueError(f"{path} is of format {fields.get('format')!r}, not {FORMAT}.")
            if fields.get("pairs") == []:
                raise ValueError(f"{path} has no pairs.")
            return _from_json(directory, fields)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{directory} holds no dataset: {error} Make one with lingvo-moe-prepare."
            ) from error

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
            "checksums": {
                shard: Records(self.directory / shard).checksum
                for pair in self.pairs
                for shards in pair.shards.values()
                for shard in shards
            },
        }
        text = json.dumps(fields, indent=1, ensure_ascii=False)
        # Each list of numbers in one line. A line break in a string would be written as \n.
        text = re.sub(r"\[\n[\s\d,]+\]", lambda found: " ".join(found[0].split()), text)
        write_whole(self.directory / FILE, text)

    @functools.cached_property
    def sha256(self) -> str:
        """SHA-256 of the data, in hexadecimal: pairs, tags, vocabularies and every example."""
        content = {
            "pairs": [(p.name, p.source, p.target, p.examples, p.shards) for p in self.pairs],
            "tags": self.tags,
            "vocabularies": self.hashes,
            "checksums": self.checksums,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @functools.cached_property
    def source_vocabulary(self) -> Vocabulary:
        """The vocabulary of sources, with the tags."""
        return Vocabulary.load(self.directory / "source.model", self.hashes["source"])

    @functools.cached_property
    def target_vocabulary(self) -> Vocabulary:
        """The vocabulary of targets."""
        return Vocabulary.load(self.directory / "target.model", self.hashes["target"])

    @property
    def length_ratios(self) -> dict[str, float]:
        """Target language -> the largest length_ratio of its pairs, if it is known."""
        pairs = sorted(self.pairs, key=lambda pair: pair.length_ratio)
        return {pair.target: pair.length_ratio for pair in pairs if pair.length_ratio}

    @property
    def decomposed(self) -> list[str]:
        """Target languages with dev text in NFD."""
        texts: dict[str, list[str]] = collections.defaultdict(list)
        for pair in self.pairs:
            dev = self.examples("dev", pair.name, _FORM_LINES)
            texts[pair.target] += [example.target_text for example in dev]
        return [language for language, lines in texts.items() if is_decomposed(lines)]

    @property
    def expected_ratios(self) -> dict[str, float]:
        """Target language -> mean number of target tokens of a source token in dev, if known."""
        tokens: dict[str, tuple[int, int]] = {}
        for pair in self.pairs:
            source, target = tokens.get(pair.target, (0, 0))
            for _, _, _, of_source, of_target in pair.lengths.get("dev", ()):
                source, target = source + of_source, target + of_target
            tokens[pair.target] = source, target
        return {name: target / source for name, (source, target) in tokens.items() if source}

    def pair(self, name: str) -> PairInfo:
        """The pair of that name. Raises ValueError: there is none; the message lists the most
        similar names."""
        names = [pair.name for pair in self.pairs]
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise ValueError(f"Unknown pair {name!r}; this dataset has {first_of(names)}.{hint}")
        return self.pairs[names.index(name)]

    def examples(self, split: str, name: str, count: int | None = None) -> list[Example]:
        """All examples of a pair's split, or at most the first `count`. Raises OSError: a shard is
        missing or damaged."""
        shards = self.pair(name).shards.get(split, {})
        examples = itertools.chain.from_iterable(map(self.records, shards))
        return list(itertools.islice(examples, count))

    def records(self, shard: str) -> Records:
        """Opens a shard, by its path below the directory; its checksum is verified the first time.
        Raises OSError: it is missing or damaged, or has another checksum than in dataset.json."""
        records = _open_files()(self._key, self.directory, shard)
        if self._verified.get(shard) != records.version:
            found = records.checksum
            if found != self.checksums.get(shard, found):
                raise OSError(
                    f"Shard {records.path} has another checksum than in {FILE}; restore it."
                )
            self._verified[shard] = records.version
        return records

    def example(self, split: str, pair: PairInfo, index: int) -> Example:
        """One example of a split. Raises OSError: as `records`."""
        names, ends = self._places[pair.index, split]
        shard = bisect.bisect_right(ends, index)
        return self.records(names[shard])[index - (ends[shard - 1] if shard else 0)]

    @functools.cached_property
    def _places(self) -> dict[tuple[int, str], tuple[list[str], list[int]]]:
        """(pair, split) -> its shards, and the number of examples up to the end of each."""
        return {
            (pair.index, split): (list(sizes), list(itertools.accumulate(sizes.values())))
            for pair in self.pairs
            for split, sizes in pair.shards.items()
        }

    @functools.cached_property
    def _key(self) -> object:
        """Identifies this object's open files: the directory may have held another dataset."""
        return object()

    @functools.cached_property
    def _verified(self) -> dict[str, tuple[int, int]]:
        return {}


@functools.cache
def _open_files():
    """Opens shards; keeps at most half of the allowed number of files open, for all datasets."""

    most = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    return functools.lru_cache(most)(lambda key, directory, shard: Records(directory / shard))


def _from_json(directory, fields) -> Dataset:
    """The Dataset that the fields of dataset.json describe."""
    texts = {"checksums": dict[str, str], "tags_on_both_sides": bool}
    hints = {"pairs": list, "tags": dict[str, int], "checks": dict[str, dict[str, int]], **texts}
    check_fields(fields, hints | {"vocabularies": dict[str, dict[str, str | int]]}, FILE)
    check_fields(fields["vocabularies"], dict.fromkeys(SIDES, dict), f"{FILE}: vocabularies")
    hints = typing.get_type_hints(PairInfo)
    del hints["index"]
    pairs = []
    for index, pair in enumerate(fields["pairs"]):
        check_fields(pair, hints, f"{FILE}: pairs[{index}]")
        pairs.append(PairInfo(index=index, **{name: pair[name] for name in hints}))
        if pair["target"] not in fields["tags"]:
            raise ValueError(f"{FILE} has pair {pair['name']} and no tag of its target.")
    return Dataset(
        directory,
        tuple(pairs),
        fields["tags"],
        {side: str(fields["vocabularies"][side].get("sha256")) for side in SIDES},
        fields["checks"],
        **{name: fields[name] for name in texts},
    )
