"""The stages of preparation, in pieces on disk, so that memory does not grow with the corpus.

    text      the lines of each split, in blocks
    checks    for each block: the rule that drops each line; in train also the hashes of the lines
    repeats   for each pair and range of hashes: the line numbers of repeated lines
    models    the vocabularies
    examples  for each block: a shard of the dataset, and what is counted

A stage begins when the one before is finished. The number of ranges of hashes depends on the memory
of a process; no other piece depends on that or on the number of processes.
"""

import collections
import contextlib
import functools
import itertools
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lingvo_moe.config import child
from lingvo_moe.config.fields import FROM_DATA
from lingvo_moe.data.dataset import SIDES
from lingvo_moe.data.extension import extend_vocabulary
from lingvo_moe.data.prepare_pair import PairWork, Piece, Texts, Work
from lingvo_moe.data.prepare_params import PrepareParams
from lingvo_moe.data.vocabulary import Vocabulary, train_vocabulary, unwritten_digits
from lingvo_moe.system.files import write_whole
from lingvo_moe.system.pieces import take

VOCABULARIES = "training vocabularies"


class PreparationStage(NamedTuple):
    """A stage."""

    name: str  # for progress
    pieces: Callable[[], Iterable[Piece]]  # lists its pieces; the stages before must be finished


def run_stage(stage: PreparationStage, progress: Callable[[int], None]) -> None:
    """Makes the pieces that no other process makes; at the end all are finished."""
    for piece in stage.pieces():
        take(piece.path, functools.partial(piece.make, progress))
        if piece.lines:
            progress(piece.lines)
    for piece in stage.pieces():  # again, because another process may have died
        take(piece.path, functools.partial(piece.make, lambda count: None), wait=True)


def stages(work: Work) -> list[PreparationStage]:
    """The stages in order. `repeats` needs only its own pair, but waits for all checks."""

    def each(pieces: Callable[[PairWork], Iterable[Piece]]):
        return lambda: itertools.chain.from_iterable(map(pieces, work.each_pair()))

    return [
        PreparationStage("reading", lambda: _texts(work)),
        PreparationStage("cleaning", each(PairWork.checks)),
        PreparationStage("finding repeated lines", each(PairWork.repeats)),
        PreparationStage(VOCABULARIES, lambda: _models(work)),
        PreparationStage("tokenising", each(PairWork.examples)),
    ]


def _texts(work: Work) -> list[Piece]:
    """The largest files first, because each is one piece."""
    files = {
        pair.text_path(split): (pair, split)
        for pair in work.each_pair()
        for split in pair.pair.files
    }

    def size(path: Path) -> tuple[int, Path]:
        pair, split = files[path]
        return -sum(file.stat().st_size for file in pair.pair.files[split]), path

    found = [(path, *files[path]) for path in sorted(files, key=size)]
    return [Piece(path / "lines.json", functools.partial(p.cut, split)) for path, p, split in found]


def _models(work: Work) -> list[Piece]:
    def piece(*sides):
        path = work.model_path(sides[0])
        return Piece(path, lambda _: write_whole(path, _trained(work, sides).model_bytes))

    return list(map(piece, SIDES)) if _separate(work.params) else [piece(*SIDES)]


def check_tags(params: PrepareParams) -> None:
    """Checks that both vocabularies have the tags that `tags_on_both_sides` writes. Raises
    ValueError: there are two vocabularies; the target's has no tags."""
    if params.tags_on_both_sides and _separate(params):
        cure = (
            f"{params.extend} has two. Extend a model or a dataset that has one for both sides."
            if params.extend
            else "Pass --joint_vocab."
        )
        raise ValueError(f"tags_on_both_sides needs one vocabulary for both sides. {cure}")


def _separate(params: PrepareParams) -> bool:
    if not params.extend:
        return not params.joint_vocab
    old = [Vocabulary.load(Path(params.extend) / f"{side}.model") for side in SIDES]
    if old[0] != old[1] and params.joint_vocab:
        raise ValueError(
            f"{params.extend} has two vocabularies; leave joint_vocab out to extend both."
        )
    return old[0] != old[1]


def _trained(work: Work, sides: Sequence[str]) -> Vocabulary:
    params, texts = work.params, _kept_texts(work, sides)
    options: dict[str, Any] = {
        "tags": work.tagged if sides[0] == SIDES[0] else (),
        "temperature": params.temperature,
        "character_coverage": params.character_coverage,
        "max_sentences": params.vocab_sentences,
        "seed": params.seed,
    }
    if params.extend:
        old = Vocabulary.load(Path(params.extend) / f"{sides[0]}.model")
        return extend_vocabulary(old, texts, params.new_pieces, **options)
    if not any(map(len, texts.values())):
        raise ValueError(nothing_kept(work))
    size_name = f"{sides[0]}_vocab_size"
    size = getattr(params, size_name)
    if size is FROM_DATA:
        size = vocabulary_size(sum(map(len, texts.values())) // len(sides), len(texts))
    # A vocabulary of sources alone writes nothing.
    written = _kept_texts(work, SIDES[1:]) if SIDES[1] in sides else {}
    return train_vocabulary(
        texts,
        size,
        normalization=getattr(params, f"{sides[-1]}_normalization"),
        size_name=size_name,
        ascii_digits=unwritten_digits(written),
        **options,
    )


def vocabulary_size(lines: int, languages: int) -> int:
    """Largest number of pieces, from 4,000 to 16,000: 400 a language, or more for many lines.

    With 39 languages and 64,000 lines, 16,000 pieces are far better than 8,000. With 10 languages
    and 90,000 lines, 4,000 are as good and faster, since many of 16,000 would be used fewer than
    100 times (Gowda and May 2020, arXiv 2004.02334). Both are in experiments/results/notes.md.
    """
    of_lines = 4 * (lines / 100_000) ** 0.6  # 16,000 for a million
    return 1000 * min(16, max(4, round(of_lines), round(0.4 * languages)))


def _kept_texts(work: Work, sides: Sequence[str]) -> dict[str, Texts]:
    """Language -> the kept train texts of these sides."""
    blocks: dict[str, list] = collections.defaultdict(list)
    for side in sides:
        for pair in work.each_pair():
            blocks[getattr(pair.pair, side)] += pair.kept_texts(SIDES.index(side))
    return {language: Texts(parts) for language, parts in blocks.items()}


def nothing_kept(work: Work) -> str:
    """The message of an error: no line of train is left."""
    reasons: collections.Counter[str] = collections.Counter()
    for pair in work.each_pair():
        reasons.update(pair.left_out("train"))
        reasons[f"max_length={work.params.max_length}"] += sum(pair.kept_counts)
    if not reasons.total():
        return "There are no train lines. Give text for training."
    counts = ", ".join(f"{count:,} by {name}" for name, count in reasons.items() if count)
    return (
        f"All {reasons.total():,} train lines are left out ({counts}). Give other text, or change "
        f"these params."
    )


@contextlib.contextmanager
def helpers(work: Work, count: int) -> Iterator[None]:
    """Runs helpers while the block runs, on the stages of a preparation."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            process = child.start(__name__, stdout=subprocess.DEVNULL)
            stack.enter_context(process)  # closes its pipe, and waits for its end
            child.send(process, work)
        yield


def _main() -> None:
    work = child.receive()
    with contextlib.suppress(ValueError, OSError):  # the process that started it tells the user
        for stage in stages(work):
            run_stage(stage, lambda count: None)


if __name__ == "__main__":
    _main()
