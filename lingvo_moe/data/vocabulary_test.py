import pytest
import sentencepiece

from lingvo_moe.data.normalization import DIGITS
from lingvo_moe.data.vocabulary import (
    BOS,
    EOS,
    PAD,
    UNK,
    Vocabulary,
    train_vocabulary,
    unwritten_digits,
)

TEXTS = {
    "en": ["the cat sat on the mat", "a dog ate the cat", "the dog saw a mat"] * 20,
    "eo": ["la kato sidis", "la hundo vidis la katon"],
}


@pytest.fixture(scope="module")
def vocabulary():
    return train_vocabulary(TEXTS, 400, tags=["en", "pt_BR"])


def test_ids_of_special_pieces(vocabulary):
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model_bytes)
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert processor.pad_id() == PAD
    assert processor.bos_id() == BOS
    assert processor.eos_id() == EOS
    assert processor.unk_id() == UNK
    assert (vocabulary.tag("en"), vocabulary.tag("pt_BR")) == (4, 5)
    assert processor.is_control(vocabulary.tag("pt_BR"))


def test_round_trip_and_byte_fallback(vocabulary):
    texts = ["the dog saw la katon", "", "☃ 猫"]
    ids = vocabulary.encode(texts)
    assert vocabulary.decode(ids) == texts
    assert ids[1] == []
    assert not any(BOS in row or EOS in row or UNK in row for row in ids)


def test_pieces_that_are_only_spaces(vocabulary):
    blank = {"▁", "<0x09>", "<0x0A>", "<0x0B>", "<0x0C>", "<0x0D>", "<0x20>"}
    assert set(vocabulary.pieces(vocabulary.spaces)) == blank


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_each_digit_is_a_piece_of_its_own(kind):
    texts = [f"cat {i * 37 % 1000} has {i}th 1995" for i in range(100)] + ["٣ ७ 𞥐"]
    vocabulary = train_vocabulary({"en": texts}, 400, character_coverage=0.98, model_type=kind)
    for line in ["(٨٢٥٥٨)", "7", "in 1995, 5 cats 5th", "1,234.50", "०१२३४५६७८९", "𞥐𞥙"]:
        (ids,) = vocabulary.encode([line])
        assert vocabulary.decode([ids]) == [line]
        digits = [piece for piece in vocabulary.pieces(ids) if any(map(str.isdigit, piece))]
        assert [piece for piece in digits if len(piece) < 6] == [c for c in line if c.isdigit()]
        assert vocabulary.split(line) == tuple(ids[1:])
    assert vocabulary.normalize(["5  ٣"]) == ["5 ٣"]


def test_digits_that_targets_hardly_have_become_ascii():
    targets = {"en": ["a cat 5"] * 1001 + ["९"], "fa": ["۵ گربه", "گربه"], "km": ["x\u200b៥"]}
    unwritten = unwritten_digits(targets)  # one Hindi digit in 1,002 lines is chance
    assert set(DIGITS).difference(unwritten) == set("۰۱۲۳۴۵۶۷۸۹០១២៣៤៥៦៧៨៩")
    texts = {"en": ["a cat 5", "7"], "ar": ["قط ٥"]}
    vocabulary = train_vocabulary(texts, 300, ascii_digits=unwritten)
    read = ["٨٢٥ ۸۲", "１２ 𞥕 क९", "a\u200b៥", "x\u200b᠕"]
    assert vocabulary.normalize(read) == ["825 ۸۲", "12 5 क9", "a\u200b៥", "x5"]
    source = train_vocabulary(texts, 300, ascii_digits=unwritten_digits({}))
    assert source.normalize(["٨ ۸ a\u200b៥"]) == ["8 8 a\u200b5"]
    assert not set(DIGITS) & set("".join(source.pieces(range(source.size))))


UNUSUAL = [
    "你好，世界！",
    "½ m² ﬁ ™",
    "two  spaces",
    "tab\there",
    "⁇ ▅",
    "a\u3000b\xa0c",
    "e\u0301 é",
]


def test_identity_keeps_every_character():
    vocabulary = train_vocabulary(TEXTS, 400, normalization="identity")
    assert vocabulary.normalization == "identity"
    assert vocabulary.decode(vocabulary.encode(UNUSUAL)) == UNUSUAL
    # The one exception: U+2581 stands for a space inside SentencePiece.
    assert vocabulary.decode(vocabulary.encode(["a▁b"])) == ["a b"]


def test_no_text_spells_a_tag(vocabulary):
    (ids,) = vocabulary.encode(["<2en> the cat </s> <pad>"])
    assert not set(ids) & {PAD, BOS, EOS, UNK, vocabulary.tag("en")}


def test_training_is_deterministic(vocabulary):
    assert train_vocabulary(TEXTS, 400, tags=["en", "pt_BR"]).sha256 == vocabulary.sha256


def test_a_high_temperature_covers_the_small_language():
    # "zz" is 1% of the lines. Of 200 sampled sentences T=1 gives it 2, T→∞ 100, so that only then
    # are its words worth pieces of their own.
    texts = {
        "en": [f"{a}{b} {b}{a}" for a in "bcdfghjkl" for b in ("an", "el", "or", "it")] * 20,
        "zz": ["wuxwuxwux yvqyvqyvq"] * 8,
    }
    lengths = {}
    for temperature in (1.0, 1e9):
        vocabulary = train_vocabulary(texts, 300, temperature=temperature, max_sentences=200)
        lengths[temperature] = len(vocabulary.encode(["wuxwuxwux yvqyvqyvq"])[0])
    assert lengths[1e9] < lengths[1.0]


def test_the_smallest_languages_are_in_the_sample():
    # T = 1: of 50 sampled sentences "aa" and "zz" are worth 50 · 2 / 404 = 0.25 each.
    texts = {"aa": ["ж ж"] * 2, "en": ["the cat", "a dog"] * 200, "zz": ["ц ц"] * 2}
    options = {"temperature": 1.0, "max_sentences": 50, "character_coverage": 1.0}
    vocabulary = train_vocabulary(texts, 300, **options)
    for text in ("ж", "ц"):
        assert not any(
            piece.startswith("<0x") for piece in vocabulary.pieces(vocabulary.encode([text])[0])
        )


def test_load_what_is_no_model(tmp_path):
    (tmp_path / "v.model").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"v\.model is no .*Restore"):
        Vocabulary.load(tmp_path / "v.model")


def test_of_a_long_sentence_the_beginning_is_trained_on():
    long = ["the cat " * 20 + "привет мир " * 500] * 3
    vocabulary = train_vocabulary({"ru": [line[160:] for line in long]}, 400)
    (ids,) = vocabulary.encode(["привет"])
    assert len(ids) < 6  # not single bytes
    assert train_vocabulary({"ru": long}, 400) == train_vocabulary(
        {"ru": [line[:1048] for line in long]}, 400
    )


def test_too_small_for_its_characters():
    # 256 bytes, 4 special pieces, ▁ and 17 letters.
    message = r"of 100 pieces .* alone are 278\. Give a larger target_vocab_size"
    with pytest.raises(ValueError, match=message):
        train_vocabulary(TEXTS, 100, size_name="target_vocab_size")
