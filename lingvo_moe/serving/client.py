"""Translates with an exported model. Needs only tensorflow and tensorflow-text.

python translate.py [--to=LANGUAGE] [SENTENCE ...]      (or sentences on standard input, one a line)

Models that route by source language want --source_language=LANGUAGE too.
"""

import argparse
import sys
from pathlib import Path

import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the SentencePiece ops of the graph)


def main() -> None:
    """Prints the best translation of each sentence, one a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sentences", nargs="*")
    parser.add_argument("--to", default="en", help="target language (default: en)")
    parser.add_argument("--source_language", help="for models that route by it")
    parser.add_argument("--model", default=str(Path(__file__).resolve().parent))
    parser.add_argument("--batch_size", type=int, default=64)
    args = parser.parse_args()
    sentences = args.sentences or [line.rstrip("\n") for line in sys.stdin]
    model = tf.saved_model.load(args.model)
    languages = {"target_language": tf.constant(args.to)}
    if "source_language" in model.signatures["serving_default"].structured_input_signature[1]:
        if args.source_language is None:
            parser.error("this model routes by source language: give --source_language")
        languages["source_language"] = tf.constant(args.source_language)
    for start in range(0, len(sentences), args.batch_size):
        batch = sentences[start : start + args.batch_size]
        output = model.translate(tf.constant(batch), **languages)
        for best in output["translations"][:, 0].numpy():
            print(best.decode())


if __name__ == "__main__":
    main()
