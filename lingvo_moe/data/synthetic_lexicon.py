"""The English words of the synthetic corpus, by class, most frequent first.

A word is its lemma, followed after slashes by irregular forms: the plural of a noun, the past tense
of a verb. Lemmas are unique over all classes, because they also name the
words of the invented languages.
"""

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
