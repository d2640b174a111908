"""Translations, and how those of the parts of a text are merged."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lingvo_moe.data.sentences import Part, join_parts
from lingvo_moe.data.surface import as_written


class Token(NamedTuple):
    """A token of a translation."""

    text: str  # the piece, with "▁" for a space; "</s>" for EOS
    log_prob: float  # log P in nats, given the source and the tokens before
    # the index in Translation.source of the piece with the largest attention; -1 if there is none
    source: int


class Translation(NamedTuple):
    """text, one line, and its length-normalised log-probability.

    With the option `tokens` also its tokens and the pieces of its source.
    """

    text: str
    score: float
    tokens: tuple[Token, ...] = ()
    source: tuple[str, ...] = ()

    def as_json(self, tokens: bool = False) -> dict[str, Any]:
        """Its fields for JSON; `score` is null if it is not finite, which JSON cannot hold.

        Args:
            tokens: whether to include `tokens` and `source` also if they are empty.
        """
        fields = {"text": self.text, "score": self.score if math.isfinite(self.score) else None}
        if not (tokens or self.tokens):
            return fields
        each = [token._asdict() for token in self.tokens]
        return fields | {"tokens": each, "source": list(self.source)}


# (number of tokens with EOS, the parts that they translate) -> the divisor of log P
Penalty = Callable[[int, Sequence[Part]], float]


class TranslatedPart(NamedTuple):
    """A translation of a part of a sentence and its number of tokens, with EOS; 0 if the part was
    copied or no translation was found, which has score -inf."""

    translation: Translation
    length: int

    @property
    def is_found(self) -> bool:
        """Whether there is a translation."""
        return self.translation.score > -math.inf

    def written(self, part: Part, to: str) -> "TranslatedPart":
        """The same in capitals if the part was given in capitals; `to` is its language."""
        text = as_written(self.translation.text, part.given, to)
        return self._replace(translation=self.translation._replace(text=text))


def merge_parts(
    found: Sequence[TranslatedPart], parts: Sequence[Part], penalty: Penalty
) -> Translation:
    """The translation of a text from those of its parts; its score is that of all tokens.

    Args:
        found: of each part.
        parts: of the text.
        penalty: of log P.
    """
    translations = [one.translation for one in found]
    if len(found) == 1:
        return translations[0]
    if not all(one.is_found for one in found):
        return Translation("", -math.inf)
    log_prob = sum(
        one.translation.score * penalty(one.length, [part])
        for one, part in zip(found, parts, strict=True)
    )
    starts = itertools.accumulate((len(t.source) for t in translations), initial=0)
    tokens = (
        token._replace(source=start + token.source) if token.source >= 0 else token
        for translation, start in zip(translations, starts, strict=False)
        for token in translation.tokens
    )
    return Translation(
        join_parts([t.text for t in translations], parts),
        log_prob / penalty(sum(one.length for one in found), parts),
        tuple(tokens),
        tuple(piece for t in translations for piece in t.source),
    )


def merge_hypotheses(
    found: Sequence[Sequence[TranslatedPart]],
    parts: Sequence[Part],
    penalty: Penalty | None,
) -> list[Translation]:
    """The N translations of a text, best first, from the N hypotheses of each of its parts.

    Candidate k joins, from each part, the hypothesis with the k-th largest log P; a part with fewer
    than k gives its last one. Then the candidates are sorted by score.

    Args:
        found: of each part N hypotheses.
        parts: as of `merge_parts`.
        penalty: as of `merge_parts`; None to join the k-th of each part, without scores.
    """
    if len(found) == 1:
        return [hypothesis.translation for hypothesis in found[0]]
    if penalty is None:
        texts = ([one[k].translation.text for one in found] for k in range(len(found[0])))
        return [Translation(join_parts(one, parts), math.nan) for one in texts]
    by_log_prob = [
        sorted(
            (one for one in hypotheses if one.is_found),
            key=lambda one: -one.translation.score * penalty(one.length, [part]),
        )
        for hypotheses, part in zip(found, parts, strict=True)
    ]
    count = max(map(len, by_log_prob)) if all(by_log_prob) else 0
    ranked = [[one[min(k, len(one) - 1)] for one in by_log_prob] for k in range(count)]
    merged = (merge_parts(one, parts, penalty) for one in ranked)
    missing = [Translation("", -math.inf)] * (len(found[0]) - count)
    return [*sorted(merged, key=lambda one: -one.score), *missing]


def parts_of(output: Mapping[str, Any], n_best: int, tokens: bool) -> list[list[TranslatedPart]]:
    """The N translations of each text of a batch, from the outputs of an export as lists.

    Args:
        output: of `ServedModel.translate`, or with tokens of `translate_with`.
        n_best: N.
        tokens: whether to include the tokens.
    """
    names = ("translations", "scores", "lengths", *(("tokens", "log_probs", "aligned") * tokens))
    sources = output["source"] if tokens else [()] * len(output["lengths"])
    found: list[list[TranslatedPart]] = []
    for source, *row in zip(sources, *(output[name] for name in names), strict=True):
        found.append([])
        for text, score, length, *more in itertools.islice(zip(*row, strict=True), n_best):
            made = Translation(text, score)
            if tokens:
                each = itertools.islice(zip(*more, strict=False), length)
                written = tuple(itertools.starmap(Token, each))
                made = made._replace(tokens=written, source=tuple(filter(None, source)))
            found[-1].append(TranslatedPart(made, length))
    return found
