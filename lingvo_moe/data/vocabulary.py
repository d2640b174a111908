"""SentencePiece vocabularies that cover small languages too."""

import collections
import dataclasses
import functools
import hashlib
import io
import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import sentencepiece

from lingvo_moe.data.model_file import ModelFile
from lingvo_moe.data.normalization import (
    DIGITS,
    Normalization,
    normalize,
    normalizer_of,
    rules_model,
)
from lingvo_moe.nn.special_tokens import BOS, EOS, PAD, UNK

SPACE = "\u2581"  # a space in a piece

_FEW_SENTENCES = 50_000
_MAX_BYTES = 4192  # SentencePiece ignores longer sentences in training


def tag_piece(language: str) -> str:
    """The control symbol of a target language: `<2en>`."""
    return f"<2{language}>"


def trained_part(sentence: str) -> str:
    """The part of a sentence that a vocabulary is trained on: of a long one the beginning.

    SentencePiece leaves out sentences of more than 4,192 bytes.
    """
    return sentence if len(sentence.encode()) <= _MAX_BYTES else sentence[: _MAX_BYTES // 4]


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A SentencePiece model. Ids 0 to 3 are PAD, BOS, EOS, UNK."""

    # the serialised model, the same that tensorflow-text takes
    model_bytes: bytes = dataclasses.field(repr=False)

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model_bytes)

    @property
    def size(self) -> int:
        """The number of pieces."""
        return self._processor.get_piece_size()

    @property
    def sha256(self) -> str:
        """SHA-256 of the model file, in hexadecimal."""
        return hashlib.sha256(self.model_bytes).hexdigest()

    @functools.cached_property
    def normalization(self) -> str:
        """One of `normalization.NORMALIZATIONS`; imported models may have others."""
        return ModelFile.FromString(self.model_bytes).normalizer_spec.name

    def normalize(self, texts: Sequence[str]) -> list[str]:
        """What the model sees of texts."""
        return self._normalizer.Normalize(list(texts))

    @functools.cached_property
    def _normalizer(self) -> sentencepiece.SentencePieceNormalizer:
        return normalizer_of(ModelFile.FromString(self.model_bytes))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without BOS and EOS."""
        return self._processor.encode(list(texts))

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each list of ids, without control symbols."""
        return [self._processor.decode(list(row)) for row in ids]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id, as the model spells it: "▁" stands for a space before a word."""
        return self._processor.id_to_piece([int(i) for i in ids])

    def split(self, piece: str) -> tuple[int, ...]:
        """The ids that a piece of another vocabulary is cut into, as inside of a text."""
        return tuple(self._inside.encode(piece.replace(SPACE, " ")))

    @functools.cached_property
    def _inside(self) -> sentencepiece.SentencePieceProcessor:
        """Cuts a text without a space in front and without normalization."""
        model = ModelFile.FromString(self.model_bytes)
        rules = model.normalizer_spec
        rules.add_dummy_prefix = rules.remove_extra_whitespaces = False
        rules.name, rules.precompiled_charsmap = "identity", b""
        return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())

    @functools.cached_property
    def tags(self) -> dict[str, int]:
        """Target language -> the id of its tag."""
        pieces = enumerate(self.pieces(range(self.size)))
        found = ((re.fullmatch("<2(.+)>", piece), i) for i, piece in pieces)
        return {tag[1]: i for tag, i in found if tag and self._processor.is_control(i)}

    @functools.cached_property
    def spaces(self) -> tuple[int, ...]:
        """The ids of pieces that are only spaces."""
        blank = {f"<0x{ord(c):02X}>" for c in string.whitespace}  # pieces that are bytes
        pieces = enumerate(self.pieces(range(self.size)))
        return tuple(i for i, piece in pieces if piece in blank or {*piece} <= {" ", SPACE})

    def tag(self, language: str) -> int:
        """The id of a target language's tag. Raises ValueError: the vocabulary has no such tag."""
        if language not in self.tags:
            raise ValueError(
                f"The vocabulary has no tag {tag_piece(language)}, but {', '.join(self.tags)}."
            )
        return self.tags[language]

    def save(self, path: Path) -> None:
        """Writes the SentencePiece model file."""
        path.write_bytes(self.model_bytes)

    @staticmethod
    def load(path: Path, sha256: str | None = None) -> "Vocabulary":
        """Reads a SentencePiece model file. Raises ValueError: it is missing, is no SentencePiece
        model, is empty, or has not this SHA-256."""
        try:
            vocabulary = Vocabulary(path.read_bytes())
            if not (vocabulary.model_bytes and vocabulary.size):
                raise RuntimeError("it is empty")
        except (OSError, RuntimeError) as error:
            raise ValueError(
                f"{path} is no SentencePiece model ({error}). Restore the file."
            ) from error
        if sha256 is not None and sha256 != vocabulary.sha256:
            raise ValueError(
                f"{path} is not the vocabulary that the data was prepared with: its SHA-256 is "
                f"{vocabulary.sha256[:12]}…, not {sha256[:12]}…. Restore the file."
            )
        return vocabulary


def train_vocabulary(
    texts: Mapping[str, Sequence[str]],
    size: int,
    *,
    tags: Sequence[str] = (),
    temperature: float = 5.0,
    max_sentences: int = 1_000_000,
    character_coverage: float = 0.9995,
    normalization: Normalization = "nfc",
    model_type: Literal["unigram", "bpe"] = "unigram",
    seed: int = 1,
    size_name: str = "size",
    ascii_digits: tuple[str, ...] = (),
) -> Vocabulary:
    """Trains a SentencePiece model with byte fallback; the same input gives the same bytes.

    Each digit is a piece of its own, so that models copy numbers. The ten digits of every script
    with a digit in the sample have pieces, whatever the coverage.

    Args:
        texts: language -> its sentences. Language l is sampled with probability ∝ n_l^(1/T), with
            repetition if it has too few, so that small languages get pieces of their own.
        size: largest number of pieces; small corpora may give fewer.
        tags: target languages with a tag, a control symbol that no text is encoded as.
        temperature: T; 1 samples by size, a large T evenly.
        character_coverage: share of characters that get a piece; the rest fall back to bytes.
        normalization: the change of texts before they are split. With "identity" decoding restores
            every text without spaces at its ends, except U+2581, SentencePiece's space.
        seed: of the sampling.
        size_name: what errors call the size, such as "source_vocab_size".
        ascii_digits: digits that "nfc" changes to 0 to 9. Text rarely has enough digits of another
            script for a model to learn their values.

    Raises ValueError: the size is too small for the characters.
    """
    rng = np.random.default_rng(seed)
    sampled = map(trained_part, _sample(texts, temperature, max_sentences, rng))
    sample = normalize(list(sampled), normalization, ascii_digits)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            vocab_size=size,
            hard_vocab_limit=False,
            model_type=model_type,
            byte_fallback=True,
            character_coverage=character_coverage,
            normalization_rule_name="identity",  # the sample is normalised
            remove_extra_whitespaces=normalization != "identity",
            control_symbols=[tag_piece(language) for language in tags],
            user_defined_symbols=all_digits(sample),
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNK,
            **_effort(len(sample), size),
            shuffle_input_sentence=False,
            input_sentence_size=0,
            minloglevel=2,
        )
    except RuntimeError as error:
        needed = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
        reason = f"its characters, tags and bytes alone are {needed[1]}" if needed else error
        raise ValueError(
            f"SentencePiece could not make a vocabulary of {size} pieces from {len(sample)} "
            f"sentences: {reason}. Give a larger {size_name} or a lower character_coverage."
        ) from error
    trained = ModelFile.FromString(model.getvalue())
    trained.normalizer_spec.MergeFrom(rules_model(normalization, ascii_digits).normalizer_spec)
    return Vocabulary(trained.SerializeToString())


def all_digits(texts: Iterable[str]) -> list[str]:
    """The ten digits of each script of which the texts have any."""
    found = {digit for text in texts for digit in re.findall(r"\d", text)}
    zeros = {ord(digit) - unicodedata.decimal(digit) for digit in found}
    return [chr(zero + i) for zero in sorted(zeros) for i in range(10)]


def unwritten_digits(texts: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """DIGITS of the scripts that fewer than 1 in 1,000 texts of each language have.

    Args:
        texts: target language -> its texts.
    """
    written: set[str] = set()
    for of_language in texts.values():
        others = (text for text in of_language if not text.isascii())
        counts = collections.Counter(d for text in others for d in set(all_digits([text])))
        written |= {digit for digit, n in counts.items() if 1000 * n >= len(of_language)}
    return tuple(digit for digit in DIGITS if digit not in written)


def _effort(sentences: int, size: int) -> dict[str, int]:
    """SentencePiece's options: threads, whose number is fixed because it changes the result.

    For many sentences there are fewer candidate pieces than the default, one million. This halves
    the time, and encoded texts are no longer.
    """
    if sentences <= _FEW_SENTENCES:
        return {"num_threads": 1}
    return {"num_threads": 2, "seed_sentencepiece_size": min(1_000_000, max(100_000, 25 * size))}


def _sample(texts, temperature, max_sentences, rng) -> Iterator[str]:
    """Sentences, language by language in sorted order."""
    sizes = {language: len(texts[language]) for language in sorted(texts) if len(texts[language])}
    if not sizes:
        return
    largest = max(sizes.values())
    weights = np.array([(n / largest) ** (1.0 / temperature) for n in sizes.values()])
    total = min(max_sentences, sum(sizes.values()))
    for language, share in zip(sizes, weights / weights.sum(), strict=True):
        count = max(1, round(share * total))
        sentences = texts[language]
        repeats, rest = divmod(count, len(sentences))
        for _ in range(repeats):
            yield from sentences
        for i in sorted(rng.choice(len(sentences), rest, replace=False)):
            yield sentences[i]
