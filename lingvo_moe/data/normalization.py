"""What a model sees of a text: rules that are stored in the vocabulary's file.

SentencePiece replaces, from left to right, the longest beginning that has a rule. All that read the
file apply the same rules: preparation, evaluation, translation, the server, and TensorFlow's,
CTranslate2's and other clients of exports.
"""

import collections
import functools
import io
import itertools
import tempfile
import unicodedata
from collections.abc import Sequence
from typing import Any, Literal, get_args

import sentencepiece

from lingvo_moe.data.model_file import ModelFile

# `nfc` spells the same characters in one way: canonical composition (é for e + U+0301), one space
# for any run of white space, and no marks that spell nothing, such as byte-order marks, marks of
# direction, soft hyphens and control characters. Joiners (U+200C, U+200D) stay. A zero-width space
# (U+200B) stays before a letter of a script that separates words by it, such as Khmer.
# `identity` changes nothing. The others are SentencePiece's rules, which also replace runs of
# spaces by one: `nfkc` maps characters to compatible ones (½ to 1⁄2, ， to ,), `nmt` also removes
# control characters, `cf` converts to lower case.
Normalization = Literal["nfc", "identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"]
NORMALIZATIONS = get_args(Normalization)
# All decimal digits except 0 to 9.
DIGITS = tuple(c for c in map(chr, range(0x80, 0x30000)) if c.isdecimal())

_FORMAT = (  # ranges of characters that spell nothing
    *((0x01, 0x09), (0x0E, 0x1C), (0x7F, 0x85), (0x86, 0xA0), (0xAD, 0xAE), (0x61C, 0x61D)),
    *((0x200B, 0x200C), (0x200E, 0x2010), (0x202A, 0x202F), (0x2060, 0x2070), (0xFEFF, 0xFF00)),
    (0xFFF9, 0xFFFC),
)
_WORD_SPACE, _STAND_IN = "\u200b", "\u200d"
_UNSPACED = (  # Thai to Myanmar, Khmer, Tai Le to Tai Tham, Balinese, Javanese to Tai Viet
    *((0x0E00, 0x10A0), (0x1780, 0x1800), (0x1950, 0x1AB0), (0x1B00, 0x1B80), (0xA980, 0xAAE0)),
)
_WORDS = ("Lo", "Ll", "Nd")  # categories of what a word begins with

_nfc = functools.partial(unicodedata.normalize, "NFC")
_class = unicodedata.combining  # canonical combining class: marks are in its order


def normalize(
    texts: Sequence[str], rules: str = "nfc", ascii_digits: tuple[str, ...] = ()
) -> list[str]:
    """Texts as models see them by the rules of `rules_model`; no vocabulary is needed."""
    return _normalizer(rules, ascii_digits).Normalize(list(texts))


def normalizer_of(model: Any) -> sentencepiece.SentencePieceNormalizer:
    """What a SentencePiece model, a `ModelFile`, does to a text before it is split into pieces."""
    return sentencepiece.SentencePieceNormalizer(
        model_proto=model.SerializeToString(),
        add_dummy_prefix=False,
        escape_whitespaces=False,
        remove_extra_whitespaces=model.normalizer_spec.remove_extra_whitespaces,
    )


@functools.cache
def _normalizer(rules, ascii_digits):
    return normalizer_of(rules_model(rules, ascii_digits))


@functools.cache
def rules_model(name: str, ascii_digits: tuple[str, ...] = ()) -> Any:
    """A `ModelFile` that has only the `normalizer_spec` of one of NORMALIZATIONS.

    Args:
        name: one of them.
        ascii_digits: those of DIGITS that become 0 to 9; only `nfc` changes them.
    """
    if name != "nfc":
        return _compiled(name != "identity", normalization_rule_name=name)
    # SentencePiece refuses a rule that changes nothing, so U+200B that stays becomes a joiner here.
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        new = {digit: str(unicodedata.decimal(digit)) for digit in ascii_digits}
        table = str.maketrans(new)  # a rule for U+200B before a Khmer digit gives a digit, too
        rules = {key: value.translate(table) for key, value in _rules().items()} | new
        for key, value in rules.items():
            file.write("\t".join(" ".join(f"{ord(c):X}" for c in text) for text in (key, value)))
            file.write("\n")
        file.flush()
        model = _compiled(True, normalization_rule_tsv=file.name)
    spec = model.normalizer_spec
    spec.name = "nfc"
    spec.ClearField("normalization_rule_tsv")  # the name of a temporary file
    # A charsmap is the size of a trie, the trie, and the ends of rules, each with a zero behind it.
    ends = 4 + int.from_bytes(spec.precompiled_charsmap[:4], "little")
    trie, texts = spec.precompiled_charsmap[:ends], spec.precompiled_charsmap[ends:]
    stand_in = b"\0" + _STAND_IN.encode()
    spec.precompiled_charsmap = trie + texts.replace(stand_in, b"\0" + _WORD_SPACE.encode())
    return model


def _compiled(one_space, **rules):
    """SentencePiece compiles rules where it trains, here on a letter."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a"]),
        model_writer=model,
        model_type="char",
        vocab_size=5,
        remove_extra_whitespaces=one_space,
        minloglevel=2,
        **rules,
    )
    return ModelFile(normalizer_spec=ModelFile.FromString(model.getvalue()).normalizer_spec)


@functools.cache
def _rules() -> dict[str, str]:
    """Beginnings of a text, and what replaces them in `nfc`.

    They are exact for a letter with up to two marks of its script in any order and composition, and
    for the three of Vietnamese, Greek, Hebrew or Arabic letters.
    """
    characters = _in((0x01, 0xD800), (0xE000, 0x30000))
    decomposed = {c: d for c in characters if (d := unicodedata.normalize("NFD", c)) != c}
    rules = {c: _nfc(c) for c in decomposed if _nfc(c) != c}
    composed = {c: d for c, d in decomposed.items() if c not in rules}
    for c, d in composed.items():
        for marks in map("".join, itertools.permutations(d[1:])):
            parts = (_nfc(d[0] + marks[:i]) + marks[i:] for i in range(len(marks)))
            rules |= {part: c for part in parts if _nfc(part) == c}
    by_script = collections.defaultdict(list)
    for c in filter(_class, characters):
        if c < "\u0370" or _script(c) != "COMBINING":
            by_script[_script(c)].append(c)
    for script in by_script.values():
        fixed = [c for c in script if 9 <= _class(c) < 200]  # of Hebrew and Arabic up to three
        texts = itertools.chain(itertools.permutations(script, 2), itertools.permutations(fixed, 3))
        falling = (t for t in texts if all(_class(a) > _class(b) for a, b in itertools.pairwise(t)))
        rules |= {text: _nfc(text) for text in map("".join, falling)}
    for c, d in decomposed.items():
        for mark in by_script[_script(c)] if _class(d[-1]) else ():
            whole = {c + mark: rules.get(c, c) + mark}  # text: what it becomes without its own rule
            if len(d) == 2 and c in composed:
                whole[d[0] + mark + d[1]] = rules.get(d[0] + mark, d[0] + mark) + d[1]
            rules |= {t: n for t, other in whole.items() if (n := _nfc(t)) not in (t, other)}
    rules |= {c: " " for c in characters if c.isspace() and c != " "}
    rules |= dict.fromkeys(_in(*_FORMAT), "")
    words = {c: c for c in _in(*_UNSPACED) if unicodedata.category(c) in _WORDS}
    words |= {text: other for text, other in rules.items() if text[0] in words}
    return rules | {_WORD_SPACE + text: _STAND_IN + other for text, other in words.items()}


def _in(*ranges):
    return [chr(i) for start, end in ranges for i in range(start, end)]


def _script(c):
    """The first word of a character's name; COMBINING for letters with marks of that name."""
    script = unicodedata.name(c, " ").split(" ")[0]
    return "COMBINING" if script in ("LATIN", "GREEK", "CYRILLIC") else script
