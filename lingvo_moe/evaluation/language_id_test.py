from lingvo_moe.data.synthetic import SyntheticCorpus
from lingvo_moe.evaluation.language_id import LanguageIdentifier

TEXTS = {
    "de": ["der Hund schläft nicht", "die Kinder spielen im Garten", "das ist ein Buch"],
    "en": ["the dog does not sleep", "the children play in the garden", "this is a book"],
    "ru": ["собака не спит", "дети играют в саду", "это книга"],
}


def test_languages_of_new_texts():
    identify = LanguageIdentifier(TEXTS)
    texts = ["das Kind schläft", "the dog is in the book", "книга в саду", "ich spiele nicht"]
    assert identify(texts) == ["de", "en", "ru", "de"]
    assert identify.off_target(texts, "de") == 0.5
    assert identify.off_target(texts[2:3], "ru") == 0.0


def test_closely_related_languages_of_the_synthetic_corpus():
    """Two languages of one family share most letters; 300 sentences of each tell them apart."""
    corpus = SyntheticCorpus(languages=("qna", "qne", "qka"), largest=300, smallest=300)
    train, test = (
        {code: [source for source, _ in corpus.pairs(split, code)] for code in corpus.languages}
        for split in ("train", "test")
    )
    identify = LanguageIdentifier(train)
    for code, texts in test.items():
        assert identify.off_target(texts, code) <= 0.05
