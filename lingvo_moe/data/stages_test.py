"""Preparation in pieces against a slow function that keeps everything in memory."""

import collections
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from lingvo_moe.config import child, plugins
from lingvo_moe.config.params import override
from lingvo_moe.data import prepare as preparation
from lingvo_moe.data import prepare_pair
from lingvo_moe.data.cleaning.base import Near
from lingvo_moe.data.cleaning.rules import Damaged, LengthRatio
from lingvo_moe.data.dataset import SPLITS
from lingvo_moe.data.normalization import DIGITS
from lingvo_moe.data.prepare import PrepareParams, prepare
from lingvo_moe.data.stages import vocabulary_size
from lingvo_moe.data.vocabulary import train_vocabulary
from lingvo_moe.testing.files import contents

SIZES = {"source_vocab_size": 330, "target_vocab_size": 320}


def slow_clean(corpora, held_out_targets=False):
    """By pair: kept lines by split, and counts. With Python's dicts and sets of whole texts."""
    held = collections.defaultdict(set)  # by target language
    for name, splits in corpora.items():
        lines = splits["dev"] + splits["test"]
        held[name[3:]] |= {target for source, target in lines if source.strip() and target.strip()}
    none = collections.defaultdict(set)
    cleaned = {
        name: _slow_clean_pair(
            splits,
            (held if held_out_targets else none)[name[3:]],
            corpora.get(f"{name[3:]}-{name[:2]}", {"dev": [], "test": []}),
        )
        for name, splits in corpora.items()
    }
    for name, (lines, counts) in cleaned.items():
        same = [kept["train"] for other, (kept, _) in cleaned.items() if other[3:] == name[3:]]
        targets = {target for train in same for _, target in train}
        counts["targets_in_train"] = sum(t in targets for _, t in lines["dev"] + lines["test"])
    return cleaned


def _slow_clean_pair(splits, held_targets, reverse):
    filled = {s: [p for p in lines if all(map(str.strip, p))] for s, lines in splits.items()}
    unique = list(dict.fromkeys(filled["train"]))
    sources = {source for source, _ in filled["dev"] + filled["test"]}
    turned = {pair[::-1] for pair in reverse["dev"] + reverse["test"]}
    kept = [p for p in unique if p[0] not in sources and p[1] not in held_targets]
    kept = [p for p in kept if p not in turned]
    counts = {
        "empty": sum(map(len, splits.values())) - sum(map(len, filled.values())),
        "duplicates": len(filled["train"]) - len(unique),
        "held_out_in_train": len(unique) - len(kept),
    }
    return {**filled, "train": kept}, counts


def _random_splits(seed, train):
    """Lines of few words, so that many are repeated, held out or blank."""
    rng = random.Random(seed)

    def text(words):
        return " ".join(rng.choices(words, k=rng.choice((0, 1, 2, 2, 3))))

    def lines(count):
        return [(text(["ja", "nein", "und"]), text(["yes", "no", "and"])) for _ in range(count)]

    return {"train": lines(train), "dev": lines(3), "test": lines(5)}


def _write(corpus, name, splits):
    for split, lines in splits.items():
        for side, texts in zip(name.split("-"), zip(*lines, strict=True), strict=True):
            path = corpus / split / f"{name}.{side}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{text}\n" for text in texts))


@pytest.mark.parametrize(
    ("both", "held_out_targets"),
    [(False, False), pytest.param(True, False, marks=pytest.mark.slow), (True, True)],
)
def test_blocks_and_ranges_of_hashes_give_what_memory_gives(
    tmp_path, monkeypatch, both, held_out_targets
):
    """Seven lines a block, and so little memory that each pair has several ranges of hashes."""
    monkeypatch.setattr(prepare_pair, "_BLOCK_LINES", 7)
    monkeypatch.setattr(prepare_pair, "_BYTES_PER_KEY", 1 << 16)
    corpora = {"de-en": _random_splits(1, 90), "fi-en": _random_splits(2, 71)}
    if not both:
        other = _random_splits(3, 90).items()
        corpora["en-de"] = {s: [pair[::-1] for pair in lines] for s, lines in other}
    for name, splits in corpora.items():
        _write(tmp_path / "corpus", name, splits)
    params = PrepareParams(**SIZES, both_directions=both, held_out_targets=held_out_targets)
    dataset = prepare(tmp_path / "corpus", tmp_path / "data", params, processes=1, memory_mb=1)
    if both:
        for name, splits in list(corpora.items()):
            turned = "-".join(reversed(name.split("-")))
            corpora[turned] = {s: [pair[::-1] for pair in lines] for s, lines in splits.items()}
    assert {pair.name for pair in dataset.pairs} == set(corpora)
    decode = dataset.source_vocabulary.decode, dataset.target_vocabulary.decode
    texts = {"source": {}, "target": {}}
    for name, (lines, counts) in sorted(slow_clean(corpora, held_out_targets).items()):
        assert min(counts[kind] for kind in ("empty", "duplicates", "held_out_in_train")) > 0
        assert (counts["targets_in_train"] == 0) == held_out_targets
        assert dataset.checks[name] == {**counts, "damaged": 0, "targets_changed": 0, "too_long": 0}
        for split in SPLITS:
            examples = dataset.examples(split, name)
            found = [(e.source.tolist(), e.target.tolist()) for e in examples]
            sides = (d(ids) for d, ids in zip(decode, zip(*found, strict=True), strict=True))
            assert list(zip(*sides, strict=True)) == lines[split]
            if split != "train":
                assert [(e.source_text, e.target_text) for e in examples] == lines[split]
        for i, (side, language) in enumerate(zip(texts, name.split("-"), strict=True)):
            texts[side].setdefault(language, []).extend(line[i] for line in lines["train"])
    # The vocabularies are those of all kept lines, in order.
    source = train_vocabulary(
        texts["source"], 330, tags=sorted(texts["target"]), ascii_digits=DIGITS
    )
    assert dataset.source_vocabulary == source
    assert dataset.target_vocabulary == train_vocabulary(texts["target"], 320, ascii_digits=DIGITS)


def test_pieces_by_languages_and_lines():
    sizes = [vocabulary_size(*given) for given in ((64_000, 39), (90_000, 10), (400_000, 2))]
    assert sizes == [16_000, 4000, 9000]


def test_near_duplicates_and_rules_are_left_out_of_train_alone(tmp_path):
    train = [
        ("Guten Tag!", "Good day!"),
        ("guten tag", "GOOD DAY"),  # near the first
        ("Wie geht's?", "How are you?"),  # near a source of test
        ("Ja", "Yes " * 20),
        ("kaputt \ufffd", "broken"),
        ("Nein", "No"),
    ]
    test = [("wie gehts", "how are you"), ("URL", "www.a.b \ufffd")]
    _write(tmp_path / "corpus", "de-en", {"train": train, "test": test})
    params = PrepareParams(**SIZES, cleaning=(Damaged(), LengthRatio()), duplicates=Near())
    dataset = prepare(tmp_path / "corpus", tmp_path / "data", params)
    ids = [example.source.tolist() for example in dataset.examples("train", "de-en")]
    assert dataset.source_vocabulary.decode(ids) == ["Guten Tag!", "Nein"]
    assert [e.source_text for e in dataset.examples("test", "de-en")] == ["wie gehts", "URL"]
    assert dataset.checks["de-en"] == {
        "empty": 0,
        "damaged": 1,
        "length_ratio": 1,
        "duplicates": 1,
        "held_out_in_train": 1,
        "targets_in_train": 0,
        "targets_changed": 0,
        "too_long": 0,
    }


def test_other_characters_stay_in_their_lines(tmp_path):
    """Blocks on disk keep carriage returns, tabs and Unicode's line ends inside of a text."""
    texts = [("a\rb", "x\u2028y"), ("c\x0bd", "z\x1cw"), ("e\tf", "g\u0085h")]
    for split in ("train", "test"):
        _write(tmp_path / "corpus", "de-en", {split: texts if split == "test" else [("a", "b")]})
    dataset = prepare(tmp_path / "corpus", tmp_path / "data", PrepareParams(**SIZES))
    found = [(e.source_text, e.target_text) for e in dataset.examples("test", "de-en")]
    assert found == texts


_RUN = """
import sys
from pathlib import Path
from lingvo_moe.data import prepare_pair, prepare
prepare_pair._BLOCK_LINES = 50
prepare._BYTES_A_HELPER = 1
prepare.prepare(Path(sys.argv[1]), Path(sys.argv[2]), prepare.PrepareParams(
    source_vocab_size=330, target_vocab_size=320), processes=int(sys.argv[3]))
"""


_MANY = """
import os, resource, sys
from pathlib import Path
from lingvo_moe.data.pipeline import InputParams, TrainInput
from lingvo_moe.data.prepare import PrepareParams, prepare
limit = len(os.listdir("/proc/self/fd")) + 12
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
params = PrepareParams(source_vocab_size=330, target_vocab_size=320)
dataset = prepare(Path(sys.argv[1]), Path(sys.argv[2]), params)
batches = TrainInput(dataset, InputParams(virtual_shards=1), seed=1)
print(len({pair for _ in range(2) for pair in batches.next_batch().target_pair_ids.flat}))
print(sum(len(dataset.examples("dev", pair.name)) for pair in dataset.pairs))
"""


def test_many_pairs_need_few_open_files(tmp_path):
    for i in range(16):
        lines = {"train": [("ab", f"a{i}"), ("ab", f"a{i}"), ("b", "c")], "dev": [("c", "d")]}
        _write(tmp_path / "corpus", f"l{i}-en", lines)
    command = [sys.executable, "-c", _MANY, str(tmp_path / "corpus"), str(tmp_path / "data")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout.split() == ["16", "16"], result.stderr


def test_killed_at_any_moment_it_goes_on_and_gives_the_same_bytes(tmp_path, monkeypatch):
    """Two processes, kill -9 at two moments, against one process that was never stopped."""
    corpus, moments = tmp_path / "corpus", random.Random(3)
    for seed, name in enumerate(("de-en", "fi-en")):
        _write(corpus, name, _random_splits(seed, 500))
    monkeypatch.setattr(prepare_pair, "_BLOCK_LINES", 50)
    params = PrepareParams(**SIZES)
    prepare(corpus, tmp_path / "whole", params, processes=1)
    pieces, killed = tmp_path / "data.parts", 0
    for _ in range(2):
        before = _count(pieces)
        command = [sys.executable, "-c", _RUN, str(corpus), str(tmp_path / "data"), "2"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        more = moments.randrange(1, 25)
        while process.poll() is None and _count(pieces) < before + more:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed
    prepare(corpus, tmp_path / "data", params)
    assert contents(tmp_path / "data") == contents(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["corpus", "data", "whole"]


def _count(directory):
    return sum(1 for path in directory.rglob("*") if not path.name.startswith("."))


PARAMS = PrepareParams(source_vocab_size=300, target_vocab_size=300)
_RULE = """
import dataclasses, os, time
from pathlib import Path
from lingvo_moe.data.cleaning.base import CleaningRule

@dataclasses.dataclass(frozen=True, kw_only=True)
class Odd(CleaningRule):
    name = "odd"

    def drops(self, texts, languages):
        here = Path(__file__).parent
        (here / f"process-{os.getpid()}").touch()
        end = time.monotonic() + 60
        while len(list(here.glob("process-*"))) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        return texts[0].endswith("1")
"""


def _corpus(directory, lines):
    (directory / "train").mkdir(parents=True)
    text = "".join(f"Satz {i}\tline {i}\n" for i in range(lines))
    (directory / "train/de-en.tsv").write_text(text)
    return directory


def test_a_child_that_has_ended_is_no_error(monkeypatch):
    monkeypatch.setattr(child.sys, "executable", "/bin/false")
    with child.start("a_module") as process:
        process.wait()
        child.send(process, "work")
        assert process.stdin.closed  # leaving the block would send the rest, and fail


def test_others_do_the_work_of_a_process_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "_BYTES_A_HELPER", 1)
    monkeypatch.setattr(child.sys, "executable", "/bin/false")
    corpus = _corpus(tmp_path / "corpus", 9)
    dataset = prepare(corpus, tmp_path / "data", PARAMS, processes=2)
    assert dataset.pair("de-en").examples == {"train": 9}


def test_helpers_know_rules_from_files(tmp_path, monkeypatch, fresh_plugins):
    """The rule leaves a file for each process that applies it, and waits for the other's."""
    monkeypatch.setattr(preparation, "_BYTES_A_HELPER", 1)
    monkeypatch.setattr(prepare_pair, "_BLOCK_LINES", 1)
    (tmp_path / "odd_rule.py").write_text(_RULE)
    plugins.import_plugins([str(tmp_path / "odd_rule.py")])
    params = override(PARAMS, ["cleaning=(Odd(),)"])
    corpus = _corpus(tmp_path / "corpus", 20)
    dataset = prepare(corpus, tmp_path / "data", params, processes=2)
    assert dataset.checks["de-en"]["odd"] == 2
    assert len(list(tmp_path.glob("process-*"))) == 2
