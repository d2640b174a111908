"""Translates with an export of lingvo-moe: a SavedModel, or one for CTranslate2.

python translate.py [--to=LANGUAGE] [SENTENCE ...]      (or sentences on standard input, one a line)

It needs only what computes the model: tensorflow and tensorflow-text, or ctranslate2 and
sentencepiece. Models that route by source language also need --source_language=LANGUAGE. Other
options than those at export: lingvo-moe-translate.
"""

import argparse
import io
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lingvo_moe.data.sentences import left_out, sentence_language, split_texts, written
from lingvo_moe.data.surface import copy_of, wordless
from lingvo_moe.system.batching import batches
from lingvo_moe.system.console import install, quiet
from lingvo_moe.system.lines import ArrivingLines, blocks, cut_warning, decode_lines, one_line
from lingvo_moe.tasks.languages import check_source_language, check_target_language

ABOUT = "lingvo_moe.json"
_BLOCK = 4096  # lines that are read at a time, which bounds memory

if __name__ == "__main__":
    install((ImportError, OSError, ValueError, RuntimeError))  # one-line errors
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors are exceptions


class InMemory:
    """A SavedModel.

    Attributes:
        about: `languages` and `source_languages`, those that it knows; `pairs`, such as "de-en";
            `part_pieces`, texts are split into parts of at most so many pieces; and `decomposed`,
            the target languages that are written in NFD.
        wanted: the names of the languages that `translate` takes.
    """

    def __init__(self, directory):
        self._model, self.wanted = load(directory)
        self.about = plain(self._model.about())

    def sizes(self, sentences: Sequence[str]) -> list[int]:
        """The number of pieces of each sentence."""
        with quiet():  # in the first call SentencePiece logs its normalization
            return plain(call(self._model.count_pieces, sentences))

    def translate(self, sentences: Sequence[str], languages: Mapping[str, str]) -> list[str]:
        """The best translation of each sentence; languages are those that are `wanted`."""
        with quiet():
            output = plain(call(self._model.translate, sentences, **languages))
        return [best[0] for best in output["translations"]]


class WithCTranslate2:
    """An export for CTranslate2; see InMemory.

    Its `about` has more: `tags`, language -> its tag; `no_words`, pieces that no translation has;
    `beam_size`, `min_length` and `no_repeat_ngram` as of the model's search; `length_penalty`,
    language -> exponent of the length; `length_ratio`, language -> ratio, and `length_offset`: a
    translation has at most ratio · source length + offset tokens, with tag and EOS.
    """

    def __init__(self, directory):
        import ctranslate2
        import sentencepiece

        self.about = json.loads((Path(directory) / ABOUT).read_text(encoding="utf-8"))
        self.wanted = {"target_language"}
        self._translator = ctranslate2.Translator(str(directory))
        self._source, self._target = (
            sentencepiece.SentencePieceProcessor(model_file=str(Path(directory, f"{side}.model")))
            for side in ("source", "target")
        )

    def sizes(self, sentences):
        """See InMemory."""
        return list(map(len, self._source.encode(list(sentences))))

    def translate(self, sentences, languages):
        """See InMemory."""
        about, to, results = self.about, languages["target_language"], [""] * len(sentences)
        by_length: dict[int, list] = {}
        for i, row in enumerate(self._source.encode(list(sentences), out_type=str)):
            row = [about["tags"][to], *row[: about["part_pieces"]]]
            by_length.setdefault(len(row) + 1, []).append((i, row))
        for length, rows in by_length.items():
            longest = self._longest(length, to)
            outputs = self._translator.translate_batch(
                [row for _, row in rows],
                beam_size=about["beam_size"],
                no_repeat_ngram_size=about["no_repeat_ngram"],
                disable_unk=True,
                suppress_sequences=[[piece] for piece in about["no_words"]],
                max_input_length=0,  # the rows are cut already
                max_decoding_length=longest - 1,  # which does not count EOS
                min_decoding_length=min(max(1, about["min_length"] - 1), longest - 1),
                length_penalty=about["length_penalty"][to],
            )
            for (i, _), output in zip(rows, outputs, strict=True):
                results[i] = one_line(self._target.decode(output.hypotheses[0]))
        return results

    def _longest(self, source_length, to):
        exact = round(self.about["length_ratio"][to] * source_length, 6)  # 110 is not 110+ε
        return math.ceil(exact) + self.about["length_offset"]


def load(directory):
    """The SavedModel of an export, and the names of the languages that it takes. Raises ValueError,
    OSError: it is damaged, or none of lingvo-moe-export."""
    with quiet():
        # tensorflow_text registers the SentencePiece ops of the graph. It is imported here because
        # it imports Keras, and Keras imports JAX if that is installed: 2 seconds and 260 MB.
        import tensorflow as tf
        import tensorflow_text  # noqa: F401

        try:
            model = tf.saved_model.load(str(directory))
        except (tf.errors.OpError, IndexError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"{directory} is damaged ({reason}). Copy it again, or export the model again."
            ) from error
    signature = getattr(model, "signatures", {}).get("serving_default")
    if not hasattr(model, "about") or signature is None:
        raise ValueError(f"{directory} is a SavedModel that lingvo-moe-export did not make.")
    return model, set(signature.structured_input_signature[1]) - {"sentences"}


def call(function, *texts, **given):
    """The outputs of a function of a SavedModel. Raises ValueError: the model does not know a
    language, or an option does not fit."""
    import tensorflow as tf

    given = {name: tf.convert_to_tensor(value) for name, value in given.items()}
    try:
        return function(*map(tf.constant, texts), **given)
    except tf.errors.InvalidArgumentError as error:
        if "assertion failed" not in error.message:
            raise
        raise ValueError(said(error.message)) from error


def said(text):
    """The message of a check in the graph, or the first line of another one."""
    found = re.search(r"assertion failed: \[(.*?)\]", text)
    return found[1].strip() if found else text.strip().partition("\n")[0]


def plain(value):
    """Tensors, also in dicts and lists, as lists, numbers and texts."""
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return list(map(plain, value))
    if hasattr(value, "numpy"):
        value = value.numpy()
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return value.decode() if isinstance(value, bytes) else value


def translate(engine, sentences, to="en", source_language=None, batch_tokens=2048):
    """Yields the best translation of each sentence, each one line; warns of those that are cut.
    Raises ValueError: the model does not know a language, or needs the source language."""
    about, room = engine.about, engine.about["part_pieces"]
    given = {"target_language": to, "source_language": source_language}
    if source_language is None and "source_language" in engine.wanted:
        raise ValueError("This model routes by source language; give --source_language.")
    check_source_language(source_language, about["source_languages"])
    check_target_language(to, about["languages"])
    languages = {name: given[name] for name in engine.wanted}
    language, cut, number = sentence_language(source_language, to, about["pairs"]), {}, 0
    for block in blocks(sentences, _BLOCK):
        split = split_texts(block, language, room, engine.sizes)
        parts = [part for of_one in split for part in of_one]
        found = [copy_of(part.text) for part in parts]  # of those without words
        with_words = [i for i, part in enumerate(parts) if not wordless(part.text)]
        for batch in batches([parts[i].size for i in with_words], batch_tokens):
            chosen = [with_words[place] for place in batch]
            texts = engine.translate([parts[i].text for i in chosen], languages)
            for i, text in zip(chosen, texts, strict=True):
                found[i] = text
        results = iter(found)
        for sentence, of_one in zip(block, split, strict=True):
            number += 1
            if tokens := left_out(of_one, room):
                cut[number] = tokens
            of_parts = [next(results) for _ in of_one]
            yield written(sentence, to, of_one, of_parts, about["decomposed"])
    if cut:
        print(cut_warning(cut), file=sys.stderr)


def main():
    """Prints the best translation of each sentence, one a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sentences", nargs="*", help="by default the lines of standard input")
    parser.add_argument("--to", default="en", help="target language (default: en)")
    parser.add_argument("--source_language", help="for models that need it")
    parser.add_argument("--model", default=str(Path(__file__).resolve().parent), help="the export")
    args = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    if args.sentences:
        sentences = decode_lines(map(os.fsencode, args.sentences), "the arguments")
    else:
        sentences = ArrivingLines(sys.stdin.buffer, "standard input")
    is_ctranslate2 = (Path(args.model) / "model.bin").exists()
    engine = WithCTranslate2(args.model) if is_ctranslate2 else InMemory(args.model)
    for line in translate(engine, sentences, args.to, args.source_language):
        print(line, flush=True)


if __name__ == "__main__":
    main()
