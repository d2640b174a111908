import dataclasses
import itertools
import pathlib

import pytest

from lingvo_moe.data.dataset import SPLITS
from lingvo_moe.data.synthetic import SyntheticCorpus
from lingvo_moe.data.synthetic_grammar import (
    Clause,
    NounPhrase,
    RelativeClause,
    Sentence,
    english,
    invented_nouns,
)
from lingvo_moe.data.synthetic_languages import (
    LANGUAGES,
    get_language,
    private_words,
    pronounce,
    proto_sentence,
    proto_words,
    translate,
)

ROOT = pathlib.Path(__file__).parents[2]
# testdata/synthetic is this corpus; remove it, and SAMPLE.write(ROOT / "testdata/synthetic") makes
# it again.
SAMPLE = SyntheticCorpus(
    languages=("qna", "qta", "qto", "qnu"), largest=400, smallest=30, dev=20, test=20
)
SMALL = SyntheticCorpus(largest=1500, smallest=100)
GLOSSES = {lemma: lemma for lemma in proto_words(LANGUAGES[0].family)}


def files(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*-en.*"))
    }


def test_committed_sample_is_what_is_generated(tmp_path):
    """To the byte, and whatever seed Python's hashes of strings have."""
    SAMPLE.write(tmp_path)
    assert files(tmp_path) == files(ROOT / "testdata/synthetic")


def test_layout_and_sizes():
    # size(rank) = 400 ((rank + 10) / 11) ** -a with size(4) = 30, so a = ln(400/30) / ln(14/11)
    # = 10.74; rank 2: 400 (12/11) ** -10.74 = 157; rank 3: 400 (13/11) ** -10.74 = 66.5.
    assert SAMPLE.train_sizes() == {"qna": 400, "qta": 157, "qto": 66, "qnu": 30}
    written = files(ROOT / "testdata/synthetic")
    assert len(written) == 3 * 4 * 2
    for code, size in SAMPLE.train_sizes().items():
        for suffix in (code, "en"):
            lines = {s: written[f"{s}/{code}-en.{suffix}"].count(b"\n") for s in SPLITS}
            assert lines == {"train": size, "dev": 20, "test": 20}


def test_zero_shot_pairs_have_no_training_text(tmp_path):
    corpus = dataclasses.replace(
        SMALL, languages=("qna", "qka"), zero_shot=("qka-qna",), dev=3, test=0
    )
    corpus.write(tmp_path / "corpus")
    lines = {
        path.name: path.read_text("utf-8").splitlines()
        for path in (tmp_path / "corpus/dev").iterdir()
    }
    assert lines["qka-qna.qka"] == lines["qka-en.qka"]  # all translate the same English
    assert lines["qka-qna.qna"] == lines["qna-en.qna"]
    assert not list((tmp_path / "corpus/train").glob("qka-qna.*"))


def test_no_held_out_english_in_any_training_text_and_no_duplicates():
    english_of = {
        split: [[e for _, e in SMALL.pairs(split, code)] for code in SMALL.languages]
        for split in SPLITS
    }
    for texts in itertools.chain.from_iterable(english_of.values()):
        assert len(set(texts)) == len(texts)
    train = set(itertools.chain.from_iterable(english_of["train"]))
    dev, test = set(english_of["dev"][0]), set(english_of["test"][0])
    assert not train & dev
    assert not train & test
    assert not dev & test
    # Every language is tested on the same English.
    assert all(set(texts) == test for texts in english_of["test"])


def test_the_source_determines_the_english():
    sentences = SMALL.sentences("train", "qna") + SMALL.sentences("train", "qka")
    for language in LANGUAGES:
        english_of = {}
        for sentence in sentences:
            text = english(sentence)
            assert english_of.setdefault(translate(sentence, language), text) == text


@pytest.mark.parametrize(
    ("code", "proto", "word"),
    [
        ("qna", "pomike", "fumice"),  # k > c before e i; o > u before m n; initial p > f
        ("qnu", "gilk", "kiwk"),  # g > k is after k > c, so this k stays; l > w before k
        ("qne", "tatik", "tedik"),  # t > d between vowels; a > e when i follows
        ("qne", "rad", "rat"),  # final d > t
        ("qno", "skoterv", "shodarw"),  # sk > sh; t > d between vowels; v > w; e > a before r
        ("qka", "hatipu", "achifu"),  # initial h is lost; ti > chi; p > f before u
        ("qko", "husatu", "ushato"),  # initial h is lost; s > sh before a; final u > o
        ("qke", "wokanpe", "voganbi"),  # w > v; e > i; k > g; np > nb
        ("qki", "wuliye", "vuriji"),  # w > v; final e > i; l > r before i; y > j
        ("qta", "qabuj", "gavuy"),  # q > g; b > v after a; j > y
        ("qto", "quzub", "gusov"),  # q > g; b > v after u; z > s before u; last u > o
        ("qte", "xadish", "hedis"),  # final sh > s; initial x > h; a > e when i follows
        ("qti", "xakum", "haxom"),  # initial x > h, then k > x after a; u > o before m
    ],
)
def test_sound_laws(code, proto, word):
    assert pronounce(proto, get_language(code)) == word


# "will the two old dogs not see a bird in my house ?"
DOGS = Sentence(
    Clause(
        NounPhrase("dog", True, "the", "two", "old"),
        "see",
        NounPhrase("bird", determiner="a"),
        tense="future",
        negative=True,
        question=True,
        preposition="in",
        place=NounPhrase("house", determiner="i"),
    )
)
# "an old man who took the books sleeps and we are not happy"
MAN = Sentence(
    Clause(
        NounPhrase(
            "man",
            determiner="a",
            adjective="old",
            relative=RelativeClause("take", NounPhrase("book", True, "the"), "past"),
        ),
        "sleep",
    ),
    "and",
    Clause(NounPhrase("we", True), "be", predicate="happy", negative=True),
)


def test_english():
    assert english(DOGS) == "will the two old dogs not see a bird in my house ?"
    assert english(MAN) == "an old man who took the books sleeps and we are not happy"


@pytest.mark.parametrize(
    ("code", "gloss"),
    [
        # SVOXA, DMANR: question particle; number on the adjective; plural before definite;
        # future particle before the verb, negation behind it; `my` is i + genitive.
        ("qna", "eska two olda dogoren sul seeum nik bird in iis house"),
        # SXOVA, the same but for the adjective behind the noun and negation before the verb.
        ("qne", "eska two dogoren olda nik sul seeum bird in iis house"),
        # ASXOV, RDMAN: `the` is unmarked and `a` a particle; the house precedes its `in`;
        # object case; tense and negation are suffixes of the final verb; question particle.
        ("qka", "two old dogki ino house in ane birdmo seelupe kaya"),
        # VSOXA, NAMDR: adjective agrees in number and definiteness; object particle; the
        # possessor follows the noun.
        ("qta", "xar zul museeu sadogan saoldan two id bird in house ii"),
        # The same in Tirq with the subject first.
        ("qti", "xar sadogan saoldan two zul museeu id bird in house ii"),
    ],
)
def test_word_order_of_a_question(code, gloss):
    assert proto_sentence(DOGS, get_language(code), GLOSSES) == gloss


@pytest.mark.parametrize(
    ("code", "gloss"),
    [
        # The relative clause follows its noun, `who` first.
        ("qna", "old man who takeed bookoren sleep and we beum nik happya"),
        # It precedes its noun, `who` last, and the verb agrees with `we`.
        ("qka", "ane bookkimo taketa who old man sleep and we happy bepeni"),
        # The verb comes first.
        ("qta", "sleep man old who katake id sabookan and zul beishu we happyan"),
    ],
)
def test_word_order_of_a_relative_clause(code, gloss):
    assert proto_sentence(MAN, get_language(code), GLOSSES) == gloss


def test_no_homonyms():
    for language in LANGUAGES:
        words = [pronounce(word, language) for word in proto_words(language.family).values()]
        assert len(set(words)) == len(words)
        assert all(3 <= len(word) <= 9 for word in words)


def test_private_nouns():
    corpus = dataclasses.replace(SMALL, languages=("qna", "qnu", "qke"), private_nouns=500)
    nouns = set(invented_nouns(500))
    assert len(nouns) == 500
    roots = {code: private_words(code, 500) for code in corpus.languages}
    assert not {*roots["qna"].values()} & {*roots["qnu"].values()}  # although they are related
    english_of, used = {}, set()
    for code in corpus.languages:
        for source, text in corpus.pairs("train", code):
            assert english_of.setdefault((code, source), text) == text  # the source determines it
            used |= nouns & set(text.split())
            assert not set(text.split()) & {"dog", "house", "book"}
    assert len(used) > 450  # others are plural


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"languages": ("qna", "xyz")}, "xyz"),
        ({"languages": ()}, "languages"),
        ({"languages": ("qna", "qna")}, "different"),
        ({"largest": 100}, "largest=100"),
        ({"private_nouns": 200_000}, "private_nouns=200000"),
        ({"zero_shot": ("qna-en",)}, "qna-en"),
        ({"zero_shot": ("qna-qna",)}, "qna-qna"),
    ],
)
def test_errors(change, message):
    with pytest.raises(ValueError, match=message):
        SyntheticCorpus(**change)
