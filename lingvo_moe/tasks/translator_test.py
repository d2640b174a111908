import dataclasses
import math

import numpy as np
import pytest

from lingvo_moe.data.vocabulary import EOS
from lingvo_moe.decoding.flat_beam_search import BeamOutput
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.tasks import translator
from lingvo_moe.tasks.translator import (
    Token,
    TranslatedPart,
    Translation,
    Translator,
    merge_hypotheses,
    merge_parts,
)
from lingvo_moe.testing import tiny_world


def translator_of(translate_ids, max_pieces=98, n_best=1):
    """A Translator of a function in place of a model."""
    dataset = tiny_world.dataset()
    return Translator(
        translate_ids,
        dataset.source_vocabulary,
        dataset.target_vocabulary,
        lambda source, target: [dataset.tags[target]],
        lambda source, target: 0,
        max_pieces,
        BeamSearchParams(n_best=n_best),
    )


def saying(text):
    """Translates every sentence by the pieces of a text."""
    (ids,) = tiny_world.dataset().target_vocabulary.encode([text])

    def translate_ids(source_ids, lengths, tasks, request):
        rows = len(lengths)
        return BeamOutput(
            ids=np.tile([*ids, EOS], [rows, 1, 1]),
            lengths=np.full([rows, 1], len(ids) + 1),
            scores=np.full([rows, 1], -0.5),
        )

    return translate_ids


@pytest.mark.parametrize("blank", ["", " ", "\u3000", "\xa0", "\u200b", "\ufeff", "\t\u2028"])
def test_a_blank_line_has_as_many_empty_translations_as_any_other(blank):
    def never(*batch):
        raise AssertionError("there is nothing to translate")

    assert translator_of(never, n_best=3)([blank], "en") == [[Translation("", 0.0)] * 3]


def test_a_line_without_words_is_copied():
    def never(*batch):
        raise AssertionError("there is nothing to translate")

    translator = translator_of(never, n_best=2)
    assert translator(["10.2\n😀"], "en") == [[Translation("10.2 😀", 0.0)] * 2]
    assert translator.read(["10.2"])[0].parts == []


def test_a_line_in_capitals_is_read_in_lower_case_and_written_in_capitals():
    read = []

    def translate_ids(ids, lengths, tasks, request):
        read.extend(row[1 : length - 1].tolist() for row, length in zip(ids, lengths, strict=True))
        return saying("it is ß")(ids, lengths, tasks, request)

    translator = translator_of(translate_ids)
    lines = ["KARA IMI. SO", "Kara imi.", "USB"]
    assert [best[0].text for best in translator(lines, "en")] == ["IT IS SS", "it is ß", "it is ß"]
    texts = translator.source.decode(read)
    assert sorted(texts) == sorted(["kara imi. so", *lines[1:]])


def test_translations_have_the_form_of_their_language():
    translator = dataclasses.replace(translator_of(saying("\xe9")), forms={"en": "NFD"})
    lines = ["kara mi", "KARA MI"]
    assert [best[0].text for best in translator(lines, "en")] == ["e\u0301", "E\u0301"]


@pytest.mark.parametrize("character", "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029")
def test_a_translation_is_one_line_for_every_reader(character):
    [[translation]] = translator_of(saying(f"a{character}b"))(["kara"], "en")
    assert translation == Translation("a b", -0.5)


def test_sentences_that_are_too_long_are_named():
    read, warnings = [], []

    def translate_ids(ids, lengths, tasks, request):
        read.extend(lengths)
        return saying("a")(ids, lengths, tasks, request)

    translator = translator_of(translate_ids, max_pieces=4)
    words = len(translator.source.encode(["kara kara kara kara kara kara"])[0])
    sentences = ["", "kara kara kara kara kara kara", "kara", " " * 100]
    translator(sentences, "en", warn=warnings.append)
    # 6 tokens are a language tag, 4 pieces of the sentence and EOS.
    assert max(read) == 6
    assert warnings == [
        f"warning: sentences too long for the model are cut, 1 in all: line 2 ({words - 4} tokens "
        f"left out). Split them into shorter ones."
    ]
    warnings.clear()
    translator(["kara"], "en", warn=warnings.append)
    assert not warnings


def test_a_stream_is_read_block_by_block(monkeypatch):
    monkeypatch.setattr(translator, "BLOCK", 3)
    read, warnings = [], []

    def sentences():
        for number in range(8):
            read.append(number)
            yield "kara mi " * 20 if number == 4 else "mi" if number % 2 else ""

    model = translator_of(saying("a"), max_pieces=8)
    stream = model.stream(sentences(), "en", warn=warnings.append)
    assert next(stream) == [Translation("", 0.0)]
    assert read == [0, 1, 2]
    texts = [best[0].text for best in stream]
    assert texts == ["a", "", "a", "a", "a", "", "a"]
    assert read == list(range(8))
    assert len(warnings) == 1
    assert "line 5 (" in warnings[0]


def test_words_are_aligned_by_what_their_tokens_looked_at():
    # "He sees ice cream" of "ka rami so": sees looks at rami (pieces 1 and 2), cream at so.
    written = [("▁He", 0), ("▁s", 1), ("ees", 2), ("▁ice", 3), ("▁cream", 3), ("</s>", 0)]
    tokens = tuple(Token(text, -0.1, place) for text, place in written)
    translation = Translation("He sees ice cream", -0.5, tokens, ("▁ka", "▁ra", "mi", "▁so"))
    assert repr(translation.alignment) == "[(0, 0), (1, 1), (2, 2), (2, 3)]"  # no False, no True


def test_spaces_of_their_own_are_in_the_word_that_follows():
    pieces = ["▁ein", "▁", "▁", "S", "atz", "▁", "hier", "▁"]
    tokens = tuple(Token(piece, -0.1, place) for place, piece in enumerate(pieces))
    translation = Translation("ein  Satz hier", -0.5, tokens, tuple(pieces))
    assert translation.alignment == [(0, 0), (1, 1), (2, 2)]


def test_merged_hypotheses_are_ordered_by_their_scores():
    """A part that found fewer hypotheses gives its last one to the others."""

    def part(*found):
        made = [TranslatedPart(Translation(text, score), size) for text, score, size in found]
        return [*made, *[TranslatedPart(Translation("", -math.inf), 0)] * (3 - len(made))]

    # log P is the score times the length here: -2, -1.5 and -3; -1.
    parts = [part(("a", -0.5, 4), ("b", -0.75, 2), ("c", -1.0, 3)), part(("x", -0.5, 2))]
    merged = merge_hypotheses(parts, lambda length: length)
    assert [(one.text, one.score) for one in merged] == [
        ("a x", pytest.approx(-3 / 6)),
        ("b x", pytest.approx(-2.5 / 4)),
        ("c x", pytest.approx(-4 / 5)),
    ]
    nothing = merge_hypotheses([parts[0], part()], lambda length: length)
    assert nothing == [Translation("", -math.inf)] * 3


def test_in_merged_parts_what_looked_at_nothing_is_aligned_to_nothing():
    parts = []
    for word, piece in (("a", "▁ka"), ("b", "▁mi")):
        tokens = (Token(f"▁{word}", -0.1, 0), Token("▁x", -0.1, -1), Token("</s>", -0.1, -1))
        parts.append(TranslatedPart(Translation(f"{word} x", -0.3, tokens, (piece,)), 3))
    merged = merge_parts(parts, lambda length: length)
    assert (merged.text, merged.source) == ("a x b x", ("▁ka", "▁mi"))
    assert [token.source for token in merged.tokens] == [0, -1, -1, 1, -1, -1]


SENTENCES = ["kara mi.", "mi kara so!", "ti"]
TEXT = " ".join(SENTENCES)


def test_long_sentences_are_split_at_ends_of_sentences_and_merged():
    read, requests, warnings, done = [], [], [], []

    def translate_ids(ids, lengths, tasks, request):
        read.extend(row[1 : length - 1].tolist() for row, length in zip(ids, lengths, strict=True))
        requests.append((len(lengths), request.prefix))
        return saying("a")(ids, lengths, tasks, request)

    model = translator_of(translate_ids)
    pieces = [len(ids) for ids in model.source.encode(["so " + part for part in SENTENCES])]
    decoding = BeamSearchParams(split_long=True, source_prefix="so ", target_prefix="a")
    longest = max(pieces)
    model = dataclasses.replace(model, max_pieces=longest, decoding=decoding)
    one, split = model(["kara", TEXT], "en", progress=done.append, warn=warnings.append)
    assert one == [Translation("a", -0.5)]
    # Each part has two tokens, "a" and EOS.
    parts = len(read) - 1
    assert 2 <= parts <= 3
    log_prob = parts * -0.5 * decoding.penalty(2)
    assert split[0].text == " ".join("a" * parts)
    assert split[0].score == pytest.approx(log_prob / decoding.penalty(2 * parts))
    texts = model.source.decode(sorted(read[:2], key=len)[::-1] + read[2:])
    assert all(text.startswith("so ") for text in texts)
    # The first part and the short sentence have the prefix, and no other part has.
    prefix = model.request.prefix
    assert sorted(requests) == sorted([(2, prefix), (parts - 1, ())])
    assert sum(done) == 2
    assert not warnings


def test_the_score_of_merged_parts_counts_one_tag():
    """Each part has a tag, "a" and EOS; the search's score counts the tag."""
    model = dataclasses.replace(translator_of(saying("a"), max_pieces=7), tags=1)
    model = dataclasses.replace(model, decoding=BeamSearchParams(split_long=True))
    ((merged,),) = model([TEXT], "en")
    parts = merged.text.count("a")
    assert parts > 1
    log_prob = parts * -0.5 * model.decoding.penalty(1 + 2)
    assert merged.score == pytest.approx(log_prob / model.decoding.penalty(1 + 2 * parts))


def test_a_series_by_labels_is_read_in_its_order():
    """As pandas.Series: it has a length, and its indices are labels."""

    class Series:
        def __init__(self, texts):
            self._by_label = dict(zip((2, 3, 0, 1), texts, strict=True))

        def __len__(self):
            return len(self._by_label)

        def __iter__(self):
            return iter(self._by_label.values())

        def __getitem__(self, label):
            return self._by_label[label]

    def by_length(ids, lengths, tasks, request):
        return saying("a")(ids, lengths, tasks, request)._replace(scores=-lengths[:, None] / 1.0)

    model, texts = translator_of(by_length), ["mi", "kara mi", "kara kara mi so", "ti ra mi so so"]
    assert model(Series(texts), "en") == model(texts, "en")
    assert len({best[0].score for best in model(texts, "en")}) > 2


def test_a_part_that_is_too_long_still_is_cut_with_a_warning():
    warnings = []
    model = translator_of(saying("a"), max_pieces=4)
    long, short = "kara kara kara kara kara kara. ", "mi"
    left_out = len(model.source.encode([long.strip()])[0]) - 4
    model = dataclasses.replace(model, decoding=BeamSearchParams(split_long=True))
    [[translation]] = model([long + short], "en", warn=warnings.append)
    assert translation.text == "a a"
    assert f"line 1 ({left_out} tokens left out)" in warnings[0]


def test_what_is_not_found_of_a_part_is_not_found():
    def translate_ids(ids, lengths, tasks, request):
        output = saying("a")(ids, lengths, tasks, request)
        best = np.concatenate([output.ids, 0 * output.ids], axis=1)
        sizes = np.concatenate([output.lengths, 0 * output.lengths], axis=1)
        return BeamOutput(best, sizes, np.where(sizes > 0, -0.5, -np.inf))

    model = translator_of(translate_ids, max_pieces=7, n_best=2)
    decoding = dataclasses.replace(model.decoding, split_long=True)
    [best] = dataclasses.replace(model, decoding=decoding)([TEXT], "en")
    assert best[0].text == " ".join("a" * ((len(best[0].text) + 1) // 2))
    assert best[1] == Translation("", -np.inf)
