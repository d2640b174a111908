"""How the lines of train differ from those of dev and test: look-alike characters and lengths."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from lingvo_moe.data.corpora import SentencePair
from lingvo_moe.evaluation import tokenizers

_ZEROS = "0٠۰߀०০੦૦୦௦౦೦൦෦๐໐༠၀႐០᠐᥆᧐᪀᪐᭐᮰᱀᱐꘠꣐꤀꧐꧰꩐꯰０𑄶𞥐"
# Groups of characters that are written for one another; of digits those of a script together.
_LOOK_ALIKES: tuple[Sequence[str], ...] = (
    "'’‘ʼʻ`´′ꞌ＇",
    '"“”„«»″＂',
    "-‐‑–—−",
    tuple("".join(chr(ord(zero) + value) for value in range(10)) for zero in _ZEROS),
)
_RARE = 0.01  # of a group
_MOST_BLEU = 99.0  # a smaller effect of spelling is not reported
_RATIO = 1.5  # of mean lengths
_FEWEST = 10  # lines that say something


def spelling(texts: Iterable[str], share: float = 0.0) -> dict[int, int]:
    """For str.translate: what texts hardly ever have -> the look-alike that they have most, where
    that has at least this share of its group."""
    counts, table = Counter[str](), dict[int, int]()
    for text in texts:
        counts.update(text)
    for group in _LOOK_ALIKES:
        used = {member: sum(counts[character] for character in member) for member in group}
        total, best = sum(used.values()), max(used, key=lambda member: used[member])
        if total and used[best] >= share * total:
            for member in group:
                if used[member] < _RARE * total:
                    table |= str.maketrans(member, best)
    return table


def differences(name: str, samples: Mapping[str, Sequence[SentencePair]]) -> list[str]:
    """Lines about what differs in the targets of a pair, each with its effect and the cure, from
    some lines of each split."""
    train = [line.target for line in samples.get("train", ())]
    found, size = [], sum(map(len, train)) / max(1, len(train))
    for split in ("dev", "test"):
        targets = [line.target for line in samples.get(split, ())]
        if min(len(train), len(targets)) < _FEWEST:
            continue
        table = spelling(train)
        if changed := {c for text in targets for c in text if ord(c) in table}:
            bleu = tokenizers.bleu(tokenizers.default_tokenizer(name.rpartition("-")[2]))
            score = bleu.corpus_score([t.translate(table) for t in targets], [targets]).score
            mended = spelling(targets, 0.9).keys() & {ord(c) for text in train for c in text}
            cure = "; --set=dev_spelling=True writes train as dev is" if mended else ""
            if score < _MOST_BLEU:
                found.append(
                    f"{name}: a perfect translation that writes {' '.join(sorted(changed))} as "
                    f"train does would score {score:.1f} BLEU on {split}"
                    f"{cure if split == 'dev' else ''}"
                )
        theirs = sum(map(len, targets)) / len(targets)
        if not 1 / _RATIO < theirs / size < _RATIO:
            most = min(4, round(theirs / size))
            cure = (
                f": try lingvo-moe-train --set='input.modifiers=(Merging(share=0.3,most={most}),)'"
                if most > 1 and split == "dev"
                else ""
            )
            found.append(
                f"{name}: targets of {split} have {theirs:.0f} characters, those of train "
                f"{size:.0f}{cure}"
            )
    return found
