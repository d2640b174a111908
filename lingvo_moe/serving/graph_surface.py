"""`data/surface.py` in a graph, for texts string [B] and languages string []."""

from collections.abc import Sequence

import tensorflow as tf

from lingvo_moe.data import surface
from lingvo_moe.data.surface import CASELESS, GAP, INFORMATION
from lingvo_moe.system.lines import INVISIBLE, LINE_ENDS

_BLANK = "[" + "".join(f"\\p{{{category}}}" for category in INVISIBLE) + "]*"  # see is_blank
_NO_LETTER = rf"(?:[^\p{{L}}{GAP}]|{INFORMATION})+"
_PART = f"(?:{_NO_LETTER}|{surface.ADDRESS})"
_WORDLESS = f"[{GAP}]*(?:{_PART}(?:[{GAP}]+{_PART})*)?[{GAP}]*"
_ORDINARY = (
    rf"(?s:.*)(?:[^\P{{Ll}}{surface.SMALL}]|[^\P{{Lo}}{surface.ORDINALS}]|[{CASELESS}])(?s:.*)"
)
_CAPITAL = rf"[^\P{{Lu}}{CASELESS}]"
_CAPITALS = (
    f"(?s)(?:.*{_CAPITAL}.*[{GAP}].*{_CAPITAL}.*"
    f"|(?:.*{_CAPITAL}){{{surface.LONGEST_ACRONYM + 1}}}.*)"
)


def wordless(texts: tf.Tensor) -> tf.Tensor:
    """bool [B]: `surface.wordless`."""
    return tf.strings.regex_full_match(texts, _WORDLESS)


def copies_of(texts: tf.Tensor) -> tf.Tensor:
    """string [B]: `surface.copy_of`."""
    blank = tf.strings.regex_full_match(texts, _BLANK)
    return tf.where(blank, "", one_line(texts))


def one_line(texts: tf.Tensor) -> tf.Tensor:
    """`lines.one_line`."""
    return tf.strings.regex_replace(texts, LINE_ENDS, " ")


def shouted(texts: tf.Tensor) -> tf.Tensor:
    """bool [B]: `surface.shouted`."""
    full_match = tf.strings.regex_full_match
    return full_match(texts, _CAPITALS) & ~full_match(texts, _ORDINARY)


def lowered(texts: tf.Tensor, language: tf.Tensor | None = None) -> tf.Tensor:
    """string [B]: `surface.lowered`."""
    dotted = tf.strings.regex_full_match(texts, "(?s).*İ.*")
    if language is not None:
        dotted |= tf.strings.regex_full_match(language, surface.DOTTED)
    texts = tf.where(dotted, _replace(texts, "I", "ı"), _replace(texts, "I", "i"))
    return tf.strings.lower(_replace(texts, "İ", "i"), encoding="utf-8")


def raised(texts: tf.Tensor, language: tf.Tensor) -> tf.Tensor:
    """string […], of any shape: `surface.raised`."""
    import tensorflow_text as tf_text  # imports Keras, and JAX if that is installed

    texts = _upper(texts, tf.strings.regex_full_match(language, surface.DOTTED))
    greek = _replace(tf_text.normalize_utf8(texts, "NFD"), *surface.HIATUS)
    greek = _replace(greek, surface.GREEK_ACCENTS, "")
    is_greek = tf.strings.regex_full_match(language, surface.GREEK)
    return tf_text.normalize_utf8(tf.where(is_greek, greek, texts), "NFC")


def decomposed(texts: tf.Tensor, language: tf.Tensor, languages: Sequence[str]) -> tf.Tensor:
    """string […], of any shape: in NFD if the language is one of these."""
    import tensorflow_text as tf_text

    chosen = tf.reduce_any(language == tf.constant(languages))
    return tf.where(chosen, tf_text.normalize_utf8(texts, "NFD"), texts)


def _upper(texts, dotted):
    texts = tf.where(dotted, _replace(texts, "i", "İ"), _replace(texts, "i", "I"))
    return tf.strings.upper(texts, encoding="utf-8")


def _replace(texts, pattern, replacement):
    return tf.strings.regex_replace(texts, pattern, replacement)
