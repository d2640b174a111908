import dataclasses
import math

import numpy as np
import pytest

from lingvo_moe.data.sentences import Part
from lingvo_moe.data.vocabulary import EOS
from lingvo_moe.decoding.flat_beam_search import BeamOutput
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.inference import texts
from lingvo_moe.inference.parts import (
    TranslatedPart,
    Translation,
    merge_hypotheses,
)
from lingvo_moe.inference.translator import Translator
from lingvo_moe.testing import tiny_world


def translator_of(translate_ids, part_pieces=98, n_best=1):
    """A Translator of a function in place of a model."""
    dataset = tiny_world.dataset()
    return Translator(
        translate_ids=translate_ids,
        source=dataset.source_vocabulary,
        target=dataset.target_vocabulary,
        prefix=lambda source, target: [dataset.tags[target]],
        task_id=lambda source, target: 0,
        part_pieces=part_pieces,
        decoding=BeamSearchParams(n_best=n_best),
        added=2,
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


@pytest.mark.parametrize("blank", ["", "\u3000", "\u200b", "\t\u2028"])
def test_a_blank_line_has_as_many_empty_translations_as_any_other(blank):
    def never(*batch):
        raise AssertionError("there is nothing to translate")

    assert translator_of(never, n_best=3)([blank], "en") == [[Translation("", 0.0)] * 3]


def test_a_line_in_capitals_is_read_in_lower_case_and_written_in_capitals():
    read = []

    def translate_ids(ids, lengths, tasks, request):
        read.extend(row[1 : length - 1].tolist() for row, length in zip(ids, lengths, strict=True))
        return saying("it is ß")(ids, lengths, tasks, request)

    translator = translator_of(translate_ids)
    lines = ["KARA IMI. SO", "Kara imi.", "USB", "Kara. SO KARA! Ti."]
    expected = ["IT IS SS IT IS SS", "it is ß", "it is ß", "it is ß IT IS SS it is ß"]
    assert [best[0].text for best in translator(lines, "en")] == expected
    texts = translator.source.decode(read)
    assert sorted(texts) == sorted(["kara imi.", "so", *lines[1:3], "Kara.", "so kara!", "Ti."])


@pytest.mark.parametrize("character", "\n\v\x85\u2028")
def test_a_translation_is_one_line_for_every_reader(character):
    [[translation]] = translator_of(saying(f"a{character}b"))(["kara"], "en")
    assert translation == Translation("a b", -0.5)


def test_a_sentence_longer_than_training_rows_is_cut_between_words():
    read, warnings = [], []

    def translate_ids(ids, lengths, tasks, request):
        read.extend(lengths)
        return saying("a")(ids, lengths, tasks, request)

    model = translator_of(translate_ids, part_pieces=4)
    sentences = ["", "kara kara kara kara kara kara", "kara", " " * 100]
    results = model(sentences, "en", warn=warnings.append)
    # 6 tokens are a language tag, 4 pieces of the sentence and EOS.
    assert max(read) <= 6
    assert len(read) > 3
    assert results[1][0].text == " ".join("a" * (len(read) - 1))
    assert not warnings


def test_a_part_without_words_is_copied():
    model = translator_of(saying("a"), part_pieces=8)
    [[one]] = model(["mi kara " + "12 34 " * 20], "en")
    assert one.text.startswith("a ")
    assert one.text.endswith(" 12 34 12 34")
    assert -0.5 <= one.score < 0.0


def test_what_cannot_be_cut_any_shorter_is_named():
    """The source prefix and a letter are more than the model reads of a part."""
    warnings = []
    decoding = BeamSearchParams(source_prefix="a ")
    model = dataclasses.replace(translator_of(saying("a")), decoding=decoding)
    prefix, letter = (len(ids) for ids in model.source.encode(["a ", "a 語"]))
    model = dataclasses.replace(model, part_pieces=2 * prefix)
    model(["", "語"], "en", warn=warnings.append)
    assert f"line 2 ({letter - 2 * prefix} tokens" in warnings[0]


def test_a_stream_is_read_block_by_block(monkeypatch):
    monkeypatch.setattr(texts, "BLOCK", 3)
    read = []

    def sentences():
        for number in range(8):
            read.append(number)
            yield "mi" if number % 2 else ""

    stream = translator_of(saying("a")).stream(sentences(), "en")
    assert next(stream) == [Translation("", 0.0)]
    assert read == [0, 1, 2]
    assert [best[0].text for best in stream] == ["a", "", "a", "", "a", "", "a"]
    assert read == list(range(8))


def test_merged_hypotheses_are_ordered_by_their_scores():
    """A part that found fewer hypotheses gives its last one to the others."""

    def part(*found):
        made = [TranslatedPart(Translation(text, score), size) for text, score, size in found]
        return [*made, *[TranslatedPart(Translation("", -math.inf), 0)] * (3 - len(made))]

    # log P is the score times the length here: -2, -1.5 and -3; -1.
    found = [part(("a", -0.5, 4), ("b", -0.75, 2), ("c", -1.0, 3)), part(("x", -0.5, 2))]
    parts = [Part("k.", 2, " "), Part("m", 1)]
    merged = merge_hypotheses(found, parts, lambda length, _: length)
    assert [(one.text, one.score) for one in merged] == [
        ("a x", pytest.approx(-3 / 6)),
        ("b x", pytest.approx(-2.5 / 4)),
        ("c x", pytest.approx(-4 / 5)),
    ]
    in_place = merge_hypotheses(found, parts, None)
    assert [one.text for one in in_place] == ["a x", "b", "c"]
    nothing = merge_hypotheses([found[0], part()], parts, lambda length, _: length)
    assert nothing == [Translation("", -math.inf)] * 3


SENTENCES = ["mi kara.", "mi kara so!", "ti"]
TEXT = "  ".join(SENTENCES)


def test_a_text_is_translated_sentence_by_sentence():
    read, requests, done = [], [], []

    def translate_ids(ids, lengths, tasks, request):
        read.extend(row[1 : length - 1].tolist() for row, length in zip(ids, lengths, strict=True))
        requests.append((len(lengths), request.prefix))
        return saying("a")(ids, lengths, tasks, request)

    model = translator_of(translate_ids)
    decoding = BeamSearchParams(source_prefix="so ", target_prefix="a")
    model = dataclasses.replace(model, decoding=decoding)
    one, split = model(["kara", TEXT], "en", progress=done.append)
    assert one == [Translation("a", -0.5)]
    # Each part has two tokens, "a" and EOS. The spaces between the sentences are kept.
    log_prob = 3 * -0.5 * decoding.penalty(2)
    assert split[0] == ("a  a  a", pytest.approx(log_prob / decoding.penalty(6)), (), ())
    given = [f"so {text}" for text in ("kara", *SENTENCES)]
    assert sorted(read) == sorted(model.source.encode(given))
    # The first part and the short sentence have the prefix, and no other part has.
    prefix = model.request.prefix
    assert sorted(requests) == sorted([(2, prefix), (2, ())])
    assert sum(done) == 2


def test_ends_of_sentences_are_those_of_the_only_language_that_the_target_is_translated_from():
    text = "Am 3. Mai kam er."
    model = translator_of(saying("a"))
    counts = [
        len(dataclasses.replace(model, pairs=pairs)([text], "en", source)[0][0].text.split())
        for pairs, source in ((["de-en", "en-fr"], None), ([], "de"), (["de-en", "fr-en"], None))
    ]
    assert counts == [1, 1, 2]


def test_the_score_of_merged_parts_counts_one_tag():
    """Each part has a tag, "a" and EOS; the search's score counts the tag."""
    model = dataclasses.replace(translator_of(saying("a")), tags=1)
    ((merged,),) = model([TEXT], "en")
    log_prob = 3 * -0.5 * model.decoding.penalty(1 + 2)
    assert merged.score == pytest.approx(log_prob / model.decoding.penalty(1 + 2 * 3))


def test_the_score_of_merged_parts_counts_no_more_tokens_than_their_sources_let_expect():
    decoding = BeamSearchParams(expected_ratio=0.5, length_penalty=2.0)
    model = dataclasses.replace(translator_of(saying("a")), decoding=decoding)
    ((merged,),) = model([TEXT], "en")
    read = [2 + len(ids) for ids in model.source.encode(SENTENCES)]  # with tag and EOS
    log_prob = sum(-0.5 * decoding.penalty(min(2, 0.5 * length)) for length in read)
    total = min(2 * 3, 0.5 * sum(read))
    assert merged.score == pytest.approx(log_prob / decoding.penalty(total))
