"""Twelve invented languages in three families, related by regular sound change.

Each family has a proto-language: words built from its own syllables, and markers (affixes and
particles). A sentence of a language is built from the words of its proto-language, in the
language's own word order and with its own markers. Then the language's ordered sound laws change
every word. So the words and affixes of related languages correspond letter by letter.

Codes are from qaa..qtz, which ISO 639-3 reserves for local use: no real language has one.
The second letter is the family.

    Norvic  qna Narvi, qne Nelda, qno Noric, qnu Nundal   SVO, prepositions, suffixes
    Kaluan  qka Kalu,  qke Kelo,  qki Kiwo,  qko Konu     SOV, postpositions, case suffixes
    Teshic  qta Tash,  qte Tekel, qti Tirq,  qto Toqar    VSO, prepositions, prefixes

Markers are templates in which `~` is the marked word: `~or` a suffix, `sa~` a prefix, `ik ~`
and `~ ik` particles. A family has no template for what it does not mark. The names of markers:

    PL DEF INDEF ACC GEN     on noun phrases (GEN makes a possessive of a pronoun)
    A.PL A.DEF               agreement of an adjective with its noun
    PAST FUT NEG             on verbs
    V1 V2 VPL                agreement of a verb: first and second person, plural subject
    Q                        on a whole question
"""

import dataclasses
import functools
import random
import re
import types
from collections.abc import Mapping

from lingvo_moe.data import synthetic_grammar as lexicon
from lingvo_moe.data.synthetic_grammar import Clause, NounPhrase, RelativeClause, Sentence


def _laws(text: str) -> tuple[tuple[str, str], ...]:
    """Ordered laws, such as `w>v`: a pattern of `re.sub`, >, and its replacement."""
    return tuple((pattern, new) for pattern, _, new in (law.partition(">") for law in text.split()))


def _table(text: str) -> dict[str, str]:
    """`NAME value; NAME value; …`."""
    return dict(entry.strip().split(" ", 1) for entry in text.split(";"))


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """A proto-language: its sounds, its markers and its rules for borrowed names."""

    name: str  # English name
    # letters (space-separated) for each symbol of a shape; `-` is no sound
    sounds: Mapping[str, str]
    content_shapes: tuple[str, ...]  # shapes of nouns, verbs, adjectives and the like
    function_shapes: tuple[str, ...]  # shapes of adpositions, pronouns and conjunctions
    markers: Mapping[str, str]  # template of each marker
    # ordered (pattern, replacement) that adapt a foreign name to the sounds
    borrowing: tuple[tuple[str, str], ...]
    postpositions: bool = False  # whether an adposition follows its noun phrase


NORVIC = Family(
    "Norvic",
    _table(
        "O p t k b d g m n s r l v f h st br tr gr kl sk; S p t k b d g m n s r l v; "
        "V a e i o u; C n r l s t k m nd rt lk"
    ),
    ("OVC", "OVSVC", "OVSVC"),
    ("SVC",),
    _table("PL ~or; DEF ~en; GEN ~is; A.PL ~a; PAST ~ed; FUT sul ~; NEG ~ nik; VPL ~um; Q eska ~"),
    _laws(r"c>k v>f ([aeiou])$>\1s"),
)
KALUAN = Family(
    "Kaluan",
    _table("C k l m n p s t w y h; V a e i o u; N n - -"),
    ("CVNCV", "CVCVCV", "CVCV"),
    ("CVCV",),
    _table("PL ~ki; INDEF ane ~; ACC ~mo; GEN ~no; PAST ~ta; FUT ~lu; NEG ~pe; V1 ~ni; Q ~ kaya"),
    _laws(r"c>k v|b>p d>t r>l ([^aeioun])(?=[^aeiou]|$)>\1u n$>nu ^([aeiou])>h\1 ia>iya nn>n"),
    postpositions=True,
)
TESHIC = Family(
    "Teshic",
    _table("C q t k d z r m b j n sh x l; V a a i u; K r m n sh z - - -"),
    ("CVCVC", "CVKCVC"),
    ("CVC",),
    _table(
        "PL ~an; DEF sa~; ACC id ~; GEN ~i; A.DEF sa~; A.PL ~an; PAST ka~; FUT mu~; NEG zul ~; "
        "V1 ~ish; V2 ~at; VPL ~u; Q xar ~"
    ),
    _laws(r"p|v>b e>i o>u c>k s>sh"),
)


@dataclasses.dataclass(frozen=True)
class SyntheticLanguage:
    """A daughter language."""

    code: str  # three letters, see the module
    name: str  # English name
    # order of Subject, Verb, Object or predicate, X adpositional phrase and Adverb
    clause_order: str
    phrase_order: str  # order of Determiner, nuMeral, Adjective, Noun and Relative clause
    family: Family  # its family
    laws: tuple[tuple[str, str], ...]  # ordered sound laws, each (pattern, replacement) of `re.sub`
    markers: Mapping[str, str]  # templates that replace those of the family

    def template(self, marker: str) -> str:
        """Template of a marker, `~` where the language does not mark it."""
        return self.markers.get(marker) or self.family.markers.get(marker, "~")


def _language(about: str, family: Family, branch, own: str, **markers: str):
    """A language from its code, name, clause order and phrase order; its own laws come last."""
    code, name, clauses, phrases = about.split()
    return SyntheticLanguage(code, name, clauses, phrases, family, branch + _laws(own), markers)


# The sound laws that the two languages of a branch share.
_EAST_NORVIC = _laws("k(?=[ei])>c o(?=[mn])>u")  # palatalisation; raising before nasals
_WEST_NORVIC = _laws("(?<=[aeiou])t(?=[aeiou])>d sk>sh")  # voicing between vowels
_NORTH_KALUAN = _laws("^h> t(?=i)>ch")  # loss of initial h; affrication
_SOUTH_KALUAN = _laws("w>v e$>i")  # final raising
_INNER_TESHIC = _laws("q>g (?<=[aiu])b>v")  # spirantisation after vowels
_OUTER_TESHIC = _laws("sh$>s ^x>h")
_NELDA, _NUNDAL = "a(?=[^aeiou]+[iu])>e [dg]$|(?<=n)d>t", "l(?=[^aeiou]|$)>w ^g>k"

# Largest corpus first. The order of the families reverses after each round, so that each family has
# languages with much, medium and little text, and the language with the least text is related to
# the one with the most.
LANGUAGES = (
    _language("qna Narvi SVOXA DMANR", NORVIC, _EAST_NORVIC, "^p>f"),
    _language("qka Kalu ASXOV RDMAN", KALUAN, _NORTH_KALUAN, "p(?=[aou])>f"),
    _language("qta Tash VSOXA NAMDR", TESHIC, _INNER_TESHIC, "j>y"),
    _language("qte Tekel VSOXA MNADR", TESHIC, _OUTER_TESHIC, "a(?=[^aiu]+i)>e d$>t"),
    _language(
        "qke Kelo SXOVA RDMAN", KALUAN, _SOUTH_KALUAN, "(?<=[aeiou])k(?=[aeiou])>g (?<=n)p>b"
    ),
    _language("qne Nelda SVOXA DMNAR", NORVIC, _WEST_NORVIC, _NELDA, NEG="nik ~"),
    _language("qno Noric ASVOX DMANR", NORVIC, _WEST_NORVIC, "v>w e(?=[rln])>a", **{"A.PL": "~"}),
    _language("qki Kiwo SOXVA DMANR", KALUAN, _SOUTH_KALUAN, "l(?=[iu])>r y>j"),
    _language("qti Tirq SVOXA NAMDR", TESHIC, _OUTER_TESHIC, "(?<=[aiu])k>x u(?=[mn])>o"),
    _language("qto Toqar VSOXA NAMDR", TESHIC, _INNER_TESHIC, "z(?=[aiu])>s u(?=[^aiu]*$)>o"),
    _language("qko Konu ASXOV RDMAN", KALUAN, _NORTH_KALUAN, "s(?=[aou])>sh u$>o", INDEF="~ ane"),
    _language("qnu Nundal SVOXA DMANR", NORVIC, _EAST_NORVIC, _NUNDAL, FUT="~ul"),
)
_BY_CODE = {language.code: language for language in LANGUAGES}


def get_language(code: str) -> SyntheticLanguage:
    """The language of a code. Raises ValueError: if no language has this code."""
    if code not in _BY_CODE:
        raise ValueError(f"Unknown synthetic language {code!r}. Use one of {', '.join(_BY_CODE)}.")
    return _BY_CODE[code]


@functools.cache
def proto_words(family: Family) -> Mapping[str, str]:
    """Proto-word of every English lemma. They differ by more than one letter, so none merge."""
    rng = random.Random(f"proto-{family.name}")
    words = {name: _apply(family.borrowing, name) for name in lexicon.lemmas(lexicon.NAMES)}
    taken = set().union(*map(_neighbourhood, words.values()))
    for lemma in (*lexicon.FUNCTION_LEMMAS, *lexicon.CONTENT_LEMMAS):
        is_function = lemma in lexicon.FUNCTION_LEMMAS
        shapes = family.function_shapes if is_function else family.content_shapes
        words[lemma] = _new_word(rng, family, shapes, taken)
    return types.MappingProxyType(words)


def _new_word(rng, family, shapes, taken, sounded=lambda word: word):
    """Draws a word which sounds unlike all words whose neighbourhoods are `taken`; adds its own."""

    def pick(options):
        return options[int(rng.random() * len(options))]

    while True:
        sounds = (pick(family.sounds[symbol].split()) for symbol in pick(shapes))
        word = "".join(sounds).replace("-", "")
        if not taken & (near := _neighbourhood(sounded(word))):
            taken |= near
            return word


def _neighbourhood(word: str) -> set[str]:
    """The word, and the word without each one of its letters.

    Two words with disjoint neighbourhoods are more than one insertion, deletion or
    substitution apart.
    """
    return {word, *(word[:i] + word[i + 1 :] for i in range(len(word)))}


@functools.cache
def _apply(laws: tuple[tuple[str, str], ...], word: str) -> str:
    for pattern, replacement in laws:
        word = re.sub(pattern, replacement, word)
    return word


def pronounce(word: str, language: SyntheticLanguage) -> str:
    """Applies the sound laws of a language, in order, to a word of its proto-language."""
    return _apply(language.laws, word)


@functools.cache
def private_words(code: str, count: int) -> Mapping[str, str]:
    """A word of the language's own for each invented noun, before its sound laws."""
    language = get_language(code)
    rng, family = random.Random(f"private-{code}"), language.family

    def sounded(word):
        return pronounce(word, language)

    shapes = [first + second for first in family.content_shapes for second in family.content_shapes]
    taken = set().union(*(_neighbourhood(sounded(word)) for word in proto_words(family).values()))
    nouns = lexicon.invented_nouns(count)
    words = {noun: _new_word(rng, family, shapes, taken, sounded) for noun in nouns}
    return types.MappingProxyType(words)


@functools.cache
def _roots(code, nouns):
    return {**proto_words(get_language(code).family), **private_words(code, nouns)}


def translate(sentence: Sentence, language: SyntheticLanguage, nouns: int = 0) -> str:
    """A tree, whose nouns may be the first of the invented ones, in a language: lower-case words
    separated by spaces."""
    words = proto_sentence(sentence, language, _roots(language.code, nouns)).split()
    return " ".join(pronounce(word, language) for word in words)


def proto_sentence(
    sentence: Sentence, language: SyntheticLanguage, roots: Mapping[str, str]
) -> str:
    """A tree in the grammar of a language, before its sound laws. `roots` are the words of the
    English lemmas; `{lemma: lemma}` gives an interlinear gloss."""
    speaker = _SentenceBuilder(language, roots)
    words = speaker.clause(sentence.clause)
    if sentence.second is None:
        return words
    return f"{words} {roots[sentence.conjunction]} {speaker.clause(sentence.second)}"


@dataclasses.dataclass(frozen=True)
class _SentenceBuilder:
    """Builds sentences of trees in the grammar of one language with given roots."""

    language: SyntheticLanguage
    roots: Mapping[str, str]

    def _mark(self, head: str, *markers: str | None, before: str = "", after: str = "") -> str:
        """Puts affixes on the head, its modifiers around it, and particles around the phrase."""
        templates = [self.language.template(marker) for marker in markers if marker]
        for template in templates:
            if " " not in template:
                head = template.replace("~", head)
        phrase = f"{before} {head} {after}".strip()
        for template in templates:
            if " " in template:
                phrase = template.replace("~", phrase)
        return phrase

    def _in_order(self, parts: Mapping[str, str]) -> str:
        return " ".join(parts[slot] for slot in self.language.clause_order if slot in parts)

    def clause(self, clause: Clause) -> str:
        subject, roots = clause.subject, self.roots
        parts = {
            "S": self.noun_phrase(subject),
            "V": self.verb(clause.verb, clause.tense, subject, clause.negative),
        }
        if clause.object:
            parts["O"] = self.noun_phrase(clause.object, "ACC")
        if clause.predicate:
            agreement = "A.PL" if subject.number_is_plural else None
            parts["O"] = self._mark(roots[clause.predicate], agreement)
        if clause.place:
            both = [roots[clause.preposition], self.noun_phrase(clause.place)]
            parts["X"] = " ".join(both[::-1] if self.language.family.postpositions else both)
        if clause.adverb:
            parts["A"] = roots[clause.adverb]
        words = self._in_order(parts)
        return self._mark(words, "Q") if clause.question else words

    def verb(self, verb: str, tense: str, subject: NounPhrase, negative: bool = False) -> str:
        return self._mark(
            self.roots[verb],
            {"past": "PAST", "future": "FUT"}.get(tense),
            "NEG" if negative else None,
            f"V{subject.person}",
            "VPL" if subject.number_is_plural else None,
        )

    def noun_phrase(self, phrase: NounPhrase, case: str | None = None) -> str:
        determiner, roots, parts = phrase.determiner, self.roots, {}
        if phrase.adjective:
            plural = "A.PL" if phrase.plural else None
            definite = "A.DEF" if determiner == "the" else None
            parts["A"] = self._mark(roots[phrase.adjective], plural, definite)
        if phrase.numeral:
            parts["M"] = roots[phrase.numeral]
        if determiner in lexicon.PRONOUNS:
            parts["D"] = self._mark(roots[determiner], "GEN")
        elif determiner in lexicon.DEMONSTRATIVES:
            parts["D"] = roots[determiner]
        if phrase.relative:
            parts["R"] = self.relative(phrase.relative, phrase)
        sides = self.language.phrase_order.split("N")
        before, after = (" ".join(parts[one] for one in side if one in parts) for side in sides)
        markers = (
            "PL" if phrase.plural and phrase.head not in lexicon.PRONOUNS else None,
            {"the": "DEF", "a": "INDEF"}.get(determiner or ""),
            case,
        )
        words = self._mark(roots[phrase.head], *markers, before=before, after=after)
        if phrase.partner is None:
            return words
        return f"{words} {roots['and']} {self.noun_phrase(phrase.partner, case)}"

    def relative(self, relative: RelativeClause, subject: NounPhrase) -> str:
        """The relative pronoun stands on the side of the noun."""
        parts = {"V": self.verb(relative.verb, relative.tense, subject)}
        if relative.object:
            parts["O"] = self.noun_phrase(relative.object, "ACC")
        pair = [self.roots["who"], self._in_order(parts)]
        follows_noun = self.language.phrase_order.endswith("R")
        return " ".join(pair if follows_noun else pair[::-1])
