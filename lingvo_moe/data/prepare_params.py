"""The params of preparation."""

import dataclasses
from typing import Annotated

from lingvo_moe.config.fields import (
    FROM_DATA,
    FromData,
    NonNegativeInt,
    Params,
    PositiveFloat,
    PositiveInt,
    Rule,
)
from lingvo_moe.data.cleaning.base import CleaningRule, Empty, Exact, Sameness
from lingvo_moe.data.cleaning.rules import Damaged
from lingvo_moe.data.lengths import LONGEST
from lingvo_moe.data.normalization import Normalization

# Names of counts that are not of a rule.
OTHER_COUNTS = (
    "duplicates",
    "held_out_in_train",
    "targets_in_train",
    "targets_changed",
    "too_long",
)

_Size = Annotated[
    int,
    Rule("from 300 to 1000000, 256 of them single bytes", lambda size: 300 <= size <= 1_000_000),
]
_Coverage = Annotated[float, Rule("from 0.98 to 1", lambda share: 0.98 <= share <= 1)]
_Length = Annotated[int, Rule(">= 3: a tag, one token and the end", lambda length: length >= 3)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareParams(Params):
    """The params of preparation.

    Attributes:
        source_vocab_size, target_vocab_size: largest number of pieces; by default (FROM_DATA) 400
            for each language, or more for many lines, from 4,000 to 16,000.
        source_normalization, target_normalization: the change of texts before they are split into
            pieces, one of `normalization.Normalization`. A model cannot write characters that the
            target's normalization replaces.
        extend: a directory with source.model and target.model, such as a logdir or a dataset, whose
            vocabularies are extended for the new text (see data.extension); sizes and normalization
            are then ignored. "" to train new ones.
        new_pieces: largest number of pieces that extending adds to a vocabulary, besides tags.
        joint_vocab: one vocabulary for both sides, of source_vocab_size pieces, with
            target_normalization.
        temperature: T of sampling languages for the vocabularies, by size^(1/T).
        vocab_sentences: largest number of sentences that a vocabulary is trained on.
        character_coverage: share of characters that get a piece; the rest are written as bytes.
        cleaning: rules that leave out lines of train, in order; see data.cleaning. Blank sides are
            always left out.
        duplicates: which texts count as the same, for repeated lines and for held-out text; texts
            are compared as the vocabulary of their side reads them.
        held_out_targets: whether to leave out lines of train whose target is in dev or test of any
            pair with the same target language. Always left out are lines whose source is in dev or
            test of their own pair, and lines whose source and target are, in exchanged places, a
            line of dev or test of the reverse pair.
        zero_shot_targets: whether dev and test may be into a language into which train has no
            text. A model never learns to write such a language, nor is its tag trained.
        max_length: longer training examples, in tokens of either side, are left out and counted.
        tags_on_both_sides: whether each side begins with its language's tag, as models that were
            imported read and write; see data.language_tags. It needs one vocabulary for both sides.
        both_directions: whether to add the reverse of each pair that the corpus does not have.
        seed: of sampling for the vocabularies.

    Raises ValueError: a value is out of range.
    """

    source_vocab_size: _Size | FromData = FROM_DATA
    target_vocab_size: _Size | FromData = FROM_DATA
    source_normalization: Normalization = "nfc"
    target_normalization: Normalization = "nfc"
    extend: str = ""
    new_pieces: NonNegativeInt = 1000
    joint_vocab: bool = False
    temperature: PositiveFloat = 5.0
    vocab_sentences: PositiveInt = 200_000
    character_coverage: _Coverage = 0.9995
    cleaning: tuple[CleaningRule, ...] = (Damaged(),)
    duplicates: Sameness = Exact()
    held_out_targets: bool = False
    zero_shot_targets: bool = False
    max_length: _Length = LONGEST
    tags_on_both_sides: bool = False
    both_directions: bool = False
    seed: NonNegativeInt = 1

    def __post_init__(self):
        super().__post_init__()
        names = [*OTHER_COUNTS, Empty.name, *(rule.name for rule in self.cleaning)]
        if len(set(names)) < len(names):
            raise ValueError(
                f"cleaning: each rule once, with a name of its own; there are {', '.join(names)}."
            )
