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
from lingvo_moe.core.lines import cut_warning, decode_lines, one_line
from lingvo_moe.data.surface import as_read, as_written, copy_of, wordless
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
            `max_pieces`, the number of pieces to which longer sentences are cut; `task`, the task
            of the experts, or None; `no_words`, pieces that no translation has; `beam_size`;
            `length_penalty`, language -> exponent of the length; `length_ratio`, language -> ratio,
            and `length_offset`: a translation has at most ratio · source length + offset tokens,
            with tag and EOS; `min_length`, its least number of tokens, with EOS;
            `no_repeat_ngram`, n if no sequence of n tokens may occur twice, or 0. These are as in
            the model's own search.
    """

    def __init__(self, directory, threads=0):
        directory = Path(directory)
        self.about = json.loads((directory / "lingvo_moe.json").read_text(encoding="utf-8"))
        self._translator = ctranslate2.Translator(str(directory), intra_threads=threads)
        self._source, self._target = (
            sentencepiece.SentencePieceProcessor(model_file=str(directory / f"{side}.model"))
            for side in ("source", "target")
        )

    def translate(self, sentences, to="en", beam_size=None, warn=print):
        """The best translation of each sentence, each one line.

        Without a beam_size the search has that of the model at export.

        Raises:
            ValueError: the model does not know the language.
        """
        tags = self.about["tags"]
        check_target_language(to, tags)
        room, results = self.about["max_pieces"], list(map(copy_of, sentences))
        places = [i for i, text in enumerate(sentences) if not wordless(text)]
        pieces = [self._source.encode(as_read(sentences[i]), out_type=str) for i in places]
        left_out = {
            i + 1: len(row) - room for i, row in zip(places, pieces, strict=True) if len(row) > room
        }
        if left_out:
            warn(cut_warning(left_out))
        by_length: dict[int, list] = {}
        for i, row in zip(places, pieces, strict=True):
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
                text = one_line(self._target.decode(output.hypotheses[0]))
                results[i] = as_written(text, sentences[i], to, self.about["forms"])
        return results

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
        sentences = list(decode_lines(map(os.fsencode, args.sentences), "the arguments"))
    else:
        sentences = list(decode_lines(sys.stdin.buffer, "standard input"))

    def warn(line):
        print(line, file=sys.stderr)

    for line in Model(args.model).translate(sentences, args.to, args.beam_size, warn):
        print(line)


if __name__ == "__main__":
    main()
