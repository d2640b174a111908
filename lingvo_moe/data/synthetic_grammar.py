"""Sentences of the synthetic corpus as trees: their English, and how they are sampled.

A tree holds only what both languages express, so that the translation determines the English
sentence. Its words are English lemmas.
"""

import bisect
import functools
import itertools
import random
import re
from collections.abc import Callable
from typing import NamedTuple

# The English words, by class, most frequent first. A word is its lemma, followed after slashes by
# irregular forms: the plural of a noun, the past tense of a verb. Lemmas are unique over all
# classes, because they also name the words of the invented languages.
PEOPLE = (
    "man/men woman/women child/children boy girl king queen friend mother father brother sister "
    "teacher farmer doctor hunter soldier sailor"
)
ANIMALS = "dog cat horse bird cow wolf/wolves bear fox mouse/mice goat owl lion duck eagle"
THINGS = (
    "book apple letter knife/knives stone box cup lamp ring egg coat hat basket flower key story "
    "coin axe rope shoe shirt song orange boat wheel drum map leaf/leaves"
)
PLACES = (
    "house river forest garden village city field mountain road bridge island lake market school "
    "tower kitchen castle valley"
)
NAMES = "anna peter maria tomas sara david nora martin elena robert lina oscar"

SOCIAL_VERBS = (
    "see/saw know/knew love/loved help follow call meet/met hear/heard teach/taught thank fear"
)
HANDLING_VERBS = (
    "take/took find/found want buy/bought carry sell/sold bring/brought hide/hid break/broke wash "
    "lose/lost keep/kept steal/stole paint throw/threw count hold/held"
)
PLAIN_VERBS = (
    "sleep/slept run/ran work walk sing/sang wait laugh play dance swim/swam fall/fell cry "
    "speak/spoke smile sit/sat rest"
)

ADJECTIVES = (
    "big small old young good new bad happy red white sad black strong tall poor rich clever "
    "green angry quiet cold hungry warm heavy weak dirty ugly empty"
)
PLACE_PREPOSITIONS = "in near from behind to"
COMPANY_PREPOSITIONS = "with for without"
ADVERBS = "today again here often there slowly quickly"
TIME_ADVERBS = {"past": "yesterday", "present": "now", "future": "tomorrow"}
NUMERALS = "two three four five six seven eight nine ten"
CONJUNCTIONS = "and but because"

DEMONSTRATIVES = {"this": "these", "that": "those"}
# Subject, object and possessive form; the subject form is the lemma.
PRONOUNS = {
    "i": ("me", "my"),
    "you": ("you", "your"),
    "he": ("him", "his"),
    "she": ("her", "her"),
    "we": ("us", "our"),
    "they": ("them", "their"),
}
PERSONS = {"i": 1, "we": 1, "you": 2}
PLURAL_PRONOUNS = ("we", "they")

# Words that have one syllable in the invented languages, like particles.
FUNCTION_LEMMAS = (
    *f"{PLACE_PREPOSITIONS} {COMPANY_PREPOSITIONS} {CONJUNCTIONS}".split(),
    *DEMONSTRATIVES,
    *PRONOUNS,
    "who",
    "be",
)


def lemmas(words: str) -> tuple[str, ...]:
    """Lemmas of one of the classes above, in their order."""
    return tuple(word.split("/")[0] for word in words.split())


NOUNS = f"{PEOPLE} {ANIMALS} {THINGS} {PLACES}"
VERBS = f"{SOCIAL_VERBS} {HANDLING_VERBS} {PLAIN_VERBS}"
CONTENT_LEMMAS = lemmas(
    f"{NOUNS} {VERBS} {ADJECTIVES} {ADVERBS} {' '.join(TIME_ADVERBS.values())} {NUMERALS}"
)
HUMAN = frozenset(lemmas(PEOPLE))
_NOUN_LEMMAS = frozenset(lemmas(NOUNS))


_IRREGULAR = dict(word.split("/") for word in f"{NOUNS} {VERBS}".split() if "/" in word)


def third_person(verb: str) -> str:
    """English third person singular present of a verb lemma."""
    if verb.endswith(("s", "x", "sh", "ch")):
        return verb + "es"
    return _without_y(verb) + "s"


def plural(noun: str) -> str:
    """English plural of a noun lemma; a regular one is formed like the third person."""
    return _IRREGULAR.get(noun) or third_person(noun)


def past(verb: str) -> str:
    """English past tense of a verb lemma."""
    return _IRREGULAR.get(verb) or _without_y(verb).removesuffix("e") + "ed"


def _without_y(word: str) -> str:
    """`cry` as `crie`, but `play`."""
    return word[:-1] + "ie" if word.endswith("y") and word[-2] not in "aeiou" else word


class NounPhrase(NamedTuple):
    """A pronoun, a name or a noun with its modifiers; `partner` is joined to it by `and`."""

    head: str
    plural: bool = False
    determiner: str | None = None  # the, a, this, that, or a pronoun (the possessor)
    numeral: str | None = None
    adjective: str | None = None
    relative: "RelativeClause | None" = None
    partner: "NounPhrase | None" = None

    @property
    def person(self) -> int:
        return PERSONS.get(self.head, 3)

    @property
    def number_is_plural(self) -> bool:
        """Whether a verb with this subject is plural."""
        return self.plural or self.partner is not None


class RelativeClause(NamedTuple):
    """Clause about a noun which is its subject: `who sees a dog`."""

    verb: str
    object: NounPhrase | None = None
    tense: str = "present"


class Clause(NamedTuple):
    """A verb with its arguments. The verb `be` has a predicate (an adjective) and no object."""

    subject: NounPhrase
    verb: str
    object: NounPhrase | None = None
    predicate: str | None = None
    tense: str = "present"
    negative: bool = False
    question: bool = False
    preposition: str = ""
    place: NounPhrase | None = None
    adverb: str | None = None


class Sentence(NamedTuple):
    """A clause, or two joined by a conjunction."""

    clause: Clause
    conjunction: str = ""
    second: Clause | None = None


@functools.cache
def invented_nouns(count: int) -> tuple[str, ...]:
    """Different English nouns that do not exist, such as `tilo`; a smaller count has the first.

    There are 278,850 such words; for a larger count it never ends.
    """
    rng = random.Random("invented nouns")
    syllables = [consonant + vowel for consonant in "bdfgklmnprtvz" for vowel in "aeiou"]
    nouns = dict.fromkeys((*CONTENT_LEMMAS, *FUNCTION_LEMMAS, *lemmas(NAMES)))
    existing = len(nouns)
    while len(nouns) < existing + count:
        length = 2 + int(rng.random() * 2)
        nouns["".join(syllables[int(rng.random() * len(syllables))] for _ in range(length))] = None
    return tuple(nouns)[existing:]


def with_nouns(sentence: Sentence, draw: Callable[[], str]) -> Sentence:
    """The tree with a drawn noun instead of each noun; pronouns and names stay."""

    def of_phrase(phrase):
        if phrase is None:
            return None
        relative = phrase.relative
        if relative:
            relative = relative._replace(object=of_phrase(relative.object))
        head = draw() if phrase.head in _NOUN_LEMMAS else phrase.head
        return phrase._replace(head=head, relative=relative, partner=of_phrase(phrase.partner))

    def of_clause(clause):
        parts = {name: of_phrase(getattr(clause, name)) for name in ("subject", "object", "place")}
        return clause._replace(**parts)

    second = sentence.second and of_clause(sentence.second)
    return sentence._replace(clause=of_clause(sentence.clause), second=second)


def english(sentence: Sentence) -> str:
    """English of a tree: lower-case words separated by spaces, `?` after a question."""
    words = _english_clause(sentence.clause)
    if sentence.second is not None:
        words += [sentence.conjunction, *_english_clause(sentence.second)]
    return re.sub(r"\ba (?=[aeiou])", "an ", " ".join(words))


def _english_clause(clause: Clause) -> list[str]:
    subject, verb, tense = _english_phrase(clause.subject), clause.verb, clause.tense
    if tense == "future":
        auxiliary, main = ["will"], [verb]
    elif verb == "be":
        auxiliary, main = [_finite("be", tense, clause.subject)], []
    elif clause.negative or clause.question:
        auxiliary, main = [_finite("do", tense, clause.subject)], [verb]
    else:
        auxiliary, main = [], [_finite(verb, tense, clause.subject)]
    words = [*auxiliary, *subject] if clause.question else [*subject, *auxiliary]
    words += ["not"] * clause.negative + main
    words += _english_phrase(clause.object, 0) if clause.object else []
    words += [clause.predicate] if clause.predicate else []
    words += [clause.preposition, *_english_phrase(clause.place, 0)] if clause.place else []
    words += [clause.adverb] if clause.adverb else []
    return words + ["?"] * clause.question


def _finite(verb: str, tense: str, subject: NounPhrase) -> str:
    third_singular = subject.person == 3 and not subject.number_is_plural
    if verb == "be":
        if tense == "past":
            return "was" if third_singular or subject.head == "i" else "were"
        return "is" if third_singular else "am" if subject.head == "i" else "are"
    if verb == "do":
        return "did" if tense == "past" else "does" if third_singular else "do"
    if tense == "past":
        return past(verb)
    return third_person(verb) if third_singular else verb


def _english_phrase(phrase: NounPhrase, pronoun_form: int | None = None) -> list[str]:
    """Words of a noun phrase; pronoun_form 0 is the object form of a pronoun."""
    head = phrase.head
    if head in PRONOUNS:
        return [head if pronoun_form is None else PRONOUNS[head][pronoun_form]]
    noun = plural(head) if phrase.plural else head
    determiner = phrase.determiner or ""
    if determiner in PRONOUNS:
        determiner = PRONOUNS[determiner][1]
    elif phrase.plural:
        determiner = DEMONSTRATIVES.get(determiner, determiner.removeprefix("a"))
    words = [word for word in (determiner, phrase.numeral, phrase.adjective, noun) if word]
    if (relative := phrase.relative) is not None:
        words.append("who" if head in HUMAN else "that")
        if relative.tense == "future":
            words += ["will", relative.verb]
        else:
            words.append(_finite(relative.verb, relative.tense, phrase._replace(partner=None)))
        words += _english_phrase(relative.object, 0) if relative.object else []
    words += ["and", *_english_phrase(phrase.partner)] if phrase.partner else []
    return words


class _Choice:
    """Draws from a class of words with Zipf-like weights 1 / (rank + 4)."""

    def __init__(self, words: str):
        self.words = lemmas(words)
        weights = [1 / (rank + 4) for rank in range(len(self.words))]
        self.bounds = [bound / sum(weights) for bound in itertools.accumulate(weights)][:-1]

    def __call__(self, rng: random.Random) -> str:
        return self.words[bisect.bisect(self.bounds, rng.random())]


_people, _animals = _Choice(PEOPLE), _Choice(ANIMALS)
_things, _places = _Choice(THINGS), _Choice(PLACES)
_names, _pronouns = _Choice(NAMES), _Choice(" ".join(PRONOUNS))
_social, _handling = _Choice(SOCIAL_VERBS), _Choice(HANDLING_VERBS)
_plain, _adjectives = _Choice(PLAIN_VERBS), _Choice(ADJECTIVES)
_adverbs, _numerals = _Choice(ADVERBS), _Choice(NUMERALS)
_places_of, _company = _Choice(PLACE_PREPOSITIONS), _Choice(COMPANY_PREPOSITIONS)
_conjunctions, _tenses = _Choice(CONJUNCTIONS), _Choice("present past future")
_demonstratives = _Choice(" ".join(DEMONSTRATIVES))


def sample_sentence(rng: random.Random) -> Sentence:
    """Draws a tree whose English has 3 to 12 words.

    Only `rng.random()` is called, because Python guarantees the sequence of this method in all
    versions. So a seed gives the same corpus everywhere.
    """
    while True:
        sentence = _sentence(rng)
        if 3 <= len(english(sentence).split()) <= 12:
            return sentence


def _sentence(rng: random.Random) -> Sentence:
    if rng.random() < 0.08:
        conjunction = _conjunctions(rng)
        return Sentence(_clause(rng, short=True), conjunction, _clause(rng, short=True))
    return Sentence(_clause(rng))


def _clause(rng: random.Random, short: bool = False) -> Clause:
    kind = rng.random()
    tense = _tenses(rng)
    negative = rng.random() < 0.2
    question = not short and rng.random() < 0.1
    subject = _subject(rng)
    if kind < 0.2:
        return Clause(subject, "be", None, _adjectives(rng), tense, negative, question)
    verb, object_ = _plain(rng), None
    if kind > 0.48:
        verb, object_ = _verb_and_object(rng, subject)
    preposition, place = "", None
    if not short and rng.random() < 0.35:
        preposition, place = _adjunct(rng)
    adverb = None
    if not short and rng.random() < 0.2:
        adverb = TIME_ADVERBS[tense] if rng.random() < 0.5 else _adverbs(rng)
    return Clause(
        subject, verb, object_, None, tense, negative, question, preposition, place, adverb
    )


def _subject(rng: random.Random) -> NounPhrase:
    draw = rng.random()
    if draw < 0.25:
        head = _pronouns(rng)
        return NounPhrase(head, head in PLURAL_PRONOUNS)
    if draw < 0.37:
        return NounPhrase(_names(rng))
    if draw < 0.43:
        partner = NounPhrase(_names(rng)) if rng.random() < 0.5 else _noun_phrase(rng, _people)
        return _noun_phrase(rng, _animals)._replace(partner=partner)
    phrase = _noun_phrase(rng, _people if rng.random() < 0.65 else _animals)
    return _with_relative(rng, phrase) if rng.random() < 0.07 else phrase


def _verb_and_object(rng: random.Random, subject: NounPhrase) -> tuple[str, NounPhrase]:
    if rng.random() < 0.55:
        return _handling(rng), _noun_phrase(rng, _things)
    draw = rng.random()
    if draw < 0.2 and subject.head not in PRONOUNS:
        head = _pronouns(rng)
        return _social(rng), NounPhrase(head, head in PLURAL_PRONOUNS)
    if draw < 0.35 and subject.head not in NAMES:
        return _social(rng), NounPhrase(_names(rng))
    phrase = _noun_phrase(rng, _people if rng.random() < 0.6 else _animals)
    if subject.relative is None and rng.random() < 0.07:
        phrase = _with_relative(rng, phrase)
    return _social(rng), phrase


def _with_relative(rng: random.Random, phrase: NounPhrase) -> NounPhrase:
    tense = _tenses(rng)
    if rng.random() < 0.5:
        return phrase._replace(relative=RelativeClause(_plain(rng), None, tense))
    object_ = _noun_phrase(rng, _things)
    return phrase._replace(relative=RelativeClause(_handling(rng), object_, tense))


def _adjunct(rng: random.Random) -> tuple[str, NounPhrase]:
    if rng.random() < 0.7:
        return _places_of(rng), _noun_phrase(rng, _places)
    phrase = NounPhrase(_names(rng)) if rng.random() < 0.3 else _noun_phrase(rng, _people)
    return _company(rng), phrase


def _noun_phrase(rng: random.Random, nouns: _Choice) -> NounPhrase:
    plural = rng.random() < 0.3
    numeral = _numerals(rng) if plural and rng.random() < 0.3 else None
    draw = rng.random()
    determiner = "the" if draw < 0.45 else "a"
    if draw >= 0.72:
        determiner = (_pronouns if draw < 0.88 else _demonstratives)(rng)
    adjective = _adjectives(rng) if rng.random() < 0.3 else None
    return NounPhrase(nouns(rng), plural, determiner, numeral, adjective)
