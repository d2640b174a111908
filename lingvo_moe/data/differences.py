"""How the targets of train differ from those of dev and test: characters and lengths."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from sacrebleu.metrics import CHRF

_LOOK_ALIKES = ("'’‘ʼʻ`´′ꞌ＇", '"“”„«»″＂', "-‐‑–—−")  # each written for one another
_RARE = 0.05  # of a group's characters
_MOST_CHRF = 99.0  # higher scores are not reported
_RATIO = 1.5  # of mean lengths
_FEWEST = 10  # lines that say something


def differences(
    pair: str,
    targets: Mapping[str, Sequence[str]],
    written: Callable[[Sequence[str]], Sequence[str]],
) -> list[str]:
    """Lines about what differs in a pair; for characters also the effect and, for dev, the cure.

    Args:
        pair: its name.
        targets: split -> some target texts, train first.
        written: texts -> those that a model writes instead, with its vocabulary and its form of
            accents.
    """
    enough = {split: texts for split, texts in targets.items() if len(texts) >= _FEWEST}
    if "train" not in enough:
        return []
    found = list(_of_lengths(f"{pair}: ", enough))
    for split in [split for split in ("dev", "test") if split in enough]:
        found += _of_characters(f"{pair}: ", split, enough["train"], enough[split], written)
    return found


def _of_characters(start, split, train, texts, written):
    normal, table = written(texts), _spelling(train)
    spelled = [text.translate(table) for text in normal]
    changed = " ".join(sorted({c for text in normal for c in text if ord(c) in table}))
    for perfect, expected, how, cure in (
        (normal, texts, "in the vocabulary's form", "--target_normalization=identity keeps dev's"),
        (spelled, normal, f"that writes {changed} as train does", "write them in train as in dev"),
    ):
        score = 100.0
        if list(perfect) != list(expected):
            score = CHRF(word_order=2).corpus_score(perfect, [expected]).score
        if score < _MOST_CHRF:
            yield (
                f"{start}a perfect translation {how} would have {score:.1f} chrF++ on {split}"
                f"{f': {cure}' if split == 'dev' else ''}"
            )


def _of_lengths(start, targets):
    means = {s: sum(map(len, texts)) / len(texts) for s, texts in targets.items()}
    if any(not 1 / _RATIO < mean / means["train"] < _RATIO for mean in means.values()):
        yield f"{start}mean characters of a target: " + ", ".join(
            f"{mean:.0f} in {split}" for split, mean in means.items()
        )


def _spelling(texts: Iterable[str]) -> dict[int, int]:
    """For str.translate: what texts hardly ever have -> the look-alike that they have most."""
    counts, table = Counter("".join(texts)), dict[int, int]()
    for group in _LOOK_ALIKES:
        used = {character: counts[character] for character in group}
        best = max(used, key=lambda character: used[character])
        rare = [c for c in group if used[c] < _RARE * sum(used.values())]
        table |= {ord(character): ord(best) for character in rare}
    return table
