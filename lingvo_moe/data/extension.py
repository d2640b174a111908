"""Extends vocabularies: new pieces follow the old ones, which keep their ids."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lingvo_moe.data.model_file import CONTROL, MODEL_TYPES, NORMAL, USER_DEFINED, ModelFile
from lingvo_moe.data.vocabulary import (
    SPACE,
    Vocabulary,
    all_digits,
    tag_piece,
    train_vocabulary,
    trained_part,
)

_TEXT = (NORMAL, USER_DEFINED)  # types of pieces; digits are of the second
_FIRST = 260  # pieces that every vocabulary has: four symbols and the single bytes


def extend_vocabulary(
    old: Vocabulary,
    texts: Mapping[str, Sequence[str]],
    new_pieces: int,
    *,
    tags: Sequence[str] = (),
    **options,
) -> Vocabulary:
    """A vocabulary with pieces for characters that it did not have, and with new tags; the old one
    if there is nothing to add.

    Every new piece has such a character, in a text as the old vocabulary normalizes it. So other
    texts are split into the same pieces as before, also those with digits that it reads as 0 to 9.

    Args:
        old: of unigrams or of byte pairs; ids, scores and normalization stay.
        texts: language -> its sentences.
        new_pieces: largest number of new pieces, without tags: single characters first.
        tags: target languages that need a tag.
        **options: temperature, max_sentences, character_coverage and seed of `train_vocabulary`.

    Raises ValueError: the characters alone need more pieces.
    """
    model = ModelFile.FromString(old.model_bytes)
    size = len(model.pieces)
    known = {c for piece in model.pieces if piece.type in _TEXT for c in piece.piece}
    known |= {SPACE, " "}
    foreign = {
        language: lines
        for language, sentences in texts.items()
        if len(lines := _LinesWithOthers(sentences, known, old))
    }
    if new_pieces and foreign:
        kind = MODEL_TYPES[model.trainer_spec.model_type]
        options |= {"normalization": old.normalization, "model_type": kind}
        for piece in _pieces_for(foreign, known, new_pieces, options):
            model.pieces.add(piece=piece.piece, score=piece.score, type=piece.type)
    for language in tags:
        if language not in old.tags:
            model.pieces.add(piece=tag_piece(language), score=0.0, type=CONTROL)
    if len(model.pieces) == size:
        return old
    model.trainer_spec.vocab_size = len(model.pieces)
    return Vocabulary(model.SerializeToString())


class _LinesWithOthers(Sequence):
    """The sentences with characters that are not known, as a vocabulary normalizes them; only their
    line numbers are in memory."""

    def __init__(self, sentences: Sequence[str], known: set[str], old: Vocabulary):
        self._sentences, self._old = sentences, old
        self.characters: set[str] = set()  # of these sentences

        def numbers() -> Iterator[int]:
            for number, sentence in enumerate(sentences):
                (text,) = old.normalize([sentence])
                if not known.issuperset(found := set(trained_part(text))):
                    self.characters |= found
                    yield number

        self._numbers = np.fromiter(numbers(), np.int64)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index):
        (text,) = self._old.normalize([self._sentences[self._numbers[index]]])
        return text


def _pieces_for(texts: Mapping[str, _LinesWithOthers], known, count, options):
    """The new pieces of a vocabulary of these texts, single characters first."""
    characters = set[str]().union(*(lines.characters for lines in texts.values()))
    characters.update(all_digits(characters))
    trained = train_vocabulary(texts, _FIRST + len(characters) + count, **options)
    pieces = ModelFile.FromString(trained.model_bytes).pieces
    new = [p for p in pieces if p.type in _TEXT and set(p.piece) - known]
    single = sum(len(piece.piece) == 1 for piece in new)
    if single > count:
        raise ValueError(
            f"The text has {single} characters that the vocabulary lacks; raise new_pieces={count}."
        )
    return sorted(new, key=lambda p: (len(p.piece) > 1, -p.score))[:count]


def find_parents(
    new: Vocabulary, old: Vocabulary, relatives: Mapping[str, str]
) -> list[tuple[int, ...]]:
    """For each id of a new vocabulary, ids of the old one: of the same piece; for a new piece, of
    the pieces that its text was split into; for a new tag, of the tag of its relative (new target
    language -> known one), or of all tags. Raises ValueError: a relative has no tag in `old`."""
    ids = {piece: i for i, piece in enumerate(old.pieces(range(old.size)))}
    tags = {tag_piece(language): language for language in new.tags}

    def parents(piece):
        if piece in ids:
            return (ids[piece],)
        if piece not in tags:
            return old.split(piece)
        relative = relatives.get(tags[piece])
        return tuple(old.tags.values()) if relative is None else (old.tag(relative),)

    return [parents(piece) for piece in new.pieces(range(new.size))]
