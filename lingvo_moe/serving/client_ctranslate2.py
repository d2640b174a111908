"""Translates with an exported model. Needs only ctranslate2 and sentencepiece.

python translate.py [--to=LANGUAGE] [SENTENCE ...]      (or sentences on standard input, one a line)
"""

import argparse
import io
import json
import math
import os
import sys
from pathlib import Path

from lingvo_moe.core.console import install
from lingvo_moe.core.lines import ArrivingLines, blocks, cut_warning, decode_lines, one_line
from lingvo_moe.data.sentences import left_out, sentence_language, split_texts, written
from lingvo_moe.tasks.languages import check_target_language

if __name__ == "__main__":
    install((ImportError, OSError, ValueError, RuntimeError))  # one-line errors

import ctranslate2
import sentencepiece


class Model:
    """An export in memory.

    Attributes:
        about: `tags`, language -> its tag; `forms`, language -> Unicode's form of its translations;
            `source_languages`, the languages that a source can have, [] if they are unknown;
            `pairs`, the language pairs, such as "de-en"; `part_pieces`, the largest number of
            pieces of what is translated as a whole; `task`, the task of the experts, or None;
            `no_words`, pieces that no translation has; `beam_size`; `length_penalty`, language ->
            exponent of the length; `length_ratio`, language -> ratio, and `length_offset`: a
            translation has at most ratio · source length + offset tokens, with tag and EOS;
            `min_length`, its least number of tokens, with EOS; `no_repeat_ngram`, n if no sequence
            of n tokens may occur twice, or 0. These are as in the model's own search.
    """

    def __init__(self, directory, threads=0):
        directory = Path(directory)
        self.about = json.loads((directory / "lingvo_moe.json").read_text(encoding="utf-8"))
        self._translator = ctranslate2.Translator(str(directory), intra_threads=threads)
        self._source, self._target = (
            sentencepiece.SentencePieceProcessor(model_file=str(directory / f"{side}.model"))
            for side in ("source", "target")
        )

    def translate(self, sentences, to="en", beam_size=None, warn=print, first_line=1):
        """The best translation of each sentence, each one line.

        Without a beam_size the search has that of the model at export. first_line is the number of
        the first sentence in warnings.

        Raises:
            ValueError: the model does not know the language.
        """
        tags = self.about["tags"]
        check_target_language(to, tags)
        room, language = self.about["part_pieces"], sentence_language(None, to, self.about["pairs"])

        def count(texts):
            return list(map(len, self._source.encode(texts)))

        split = split_texts(sentences, language, room, count)
        counts = {i: left_out(parts, room) for i, parts in enumerate(split, first_line)}
        if any(counts.values()):
            warn(cut_warning({i: count for i, count in counts.items() if count}))
        texts = [part.text for parts in split for part in parts]
        pieces, results = self._source.encode(texts, out_type=str), [""] * len(texts)
        by_length: dict[int, list] = {}
        for i, row in enumerate(pieces):
            by_length.setdefault(min(len(row), room), []).append((i, [tags[to], *row[:room]]))
        for length, rows in by_length.items():
            longest, least = self._longest(length + 2, to), self.about["min_length"]
            outputs = self._translator.translate_batch(
                [row for _, row in rows],
                beam_size=beam_size or self.about["beam_size"],
                no_repeat_ngram_size=self.about["no_repeat_ngram"],
                disable_unk=True,
                suppress_sequences=[[piece] for piece in self.about["no_words"]],
                max_input_length=0,  # the rows are cut already
                max_batch_size=2048,
                batch_type="tokens",
                max_decoding_length=longest - 1,  # which does not count EOS
                min_decoding_length=min(max(1, least - 1), longest - 1),
                length_penalty=self.about["length_penalty"][to],
            )
            for (i, _), output in zip(rows, outputs, strict=True):
                results[i] = one_line(self._target.decode(output.hypotheses[0]))
        found = iter(results)
        return [
            written(text, to, self.about["forms"], parts, [next(found) for _ in parts])
            for text, parts in zip(sentences, split, strict=True)
        ]

    def _longest(self, source_length, to):
        exact = round(self.about["length_ratio"][to] * source_length, 6)  # 110 is not 110+ε
        return math.ceil(exact) + self.about["length_offset"]


def main():
    """Prints the best translation of each sentence, one a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sentences", nargs="*")
    parser.add_argument("--to", default="en", help="target language (default: en)")
    parser.add_argument("--model", default=str(Path(__file__).resolve().parent))
    parser.add_argument("--beam_size", type=int, help="default: that of the model at export")
    args = parser.parse_args()
    if args.beam_size is not None and args.beam_size < 1:
        parser.error(f"--beam_size must be >= 1, got {args.beam_size}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    if args.sentences:
        sentences = decode_lines(map(os.fsencode, args.sentences), "the arguments")
    else:
        sentences = ArrivingLines(sys.stdin.buffer, "standard input")

    def warn(line):
        print(line, file=sys.stderr)

    model, first_line = Model(args.model), 1
    for block in blocks(sentences, 4096):
        for line in model.translate(block, args.to, args.beam_size, warn, first_line):
            print(line, flush=True)
        first_line += len(block)


if __name__ == "__main__":
    main()
