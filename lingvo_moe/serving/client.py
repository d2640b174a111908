"""Translates with an exported model. Needs only tensorflow and tensorflow-text.

python translate.py [--to=LANGUAGE] [SENTENCE ...]      (or sentences on standard input, one a line)

Models that route by source language also need --source_language=LANGUAGE.
"""

import argparse
import io
import os
import re
import sys
from pathlib import Path

from lingvo_moe.core.console import install, quiet
from lingvo_moe.core.lines import cut_warning, decode_lines

if __name__ == "__main__":
    install((ImportError, OSError, ValueError))  # one-line errors, also during imports
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors are exceptions

with quiet():
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the SentencePiece ops of the graph)


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sentences", nargs="*")
    parser.add_argument("--to", default="en", help="target language (default: en)")
    parser.add_argument("--source_language", help="for models that route by it")
    parser.add_argument("--model", default=str(Path(__file__).resolve().parent))
    parser.add_argument("--batch_size", type=int, default=64)
    args = parser.parse_args()
    if args.batch_size < 1:
        parser.error(f"--batch_size must be >= 1, got {args.batch_size}")
    return args


def check_path(path):
    """Raises ValueError if TensorFlow cannot load a SavedModel from that path.

    It reads the path of the weights as a glob pattern.
    """
    if found := sorted(set(str(path)) & set("*?[\\")):
        raise ValueError(
            f"TensorFlow cannot load a model from {path}, because the path has "
            f"{' and '.join(found)}. Choose another name."
        )


def load(directory):
    """The model, and the names of the languages that it takes."""
    check_path(directory)
    with quiet():
        model = tf.saved_model.load(directory)
    signature = getattr(model, "signatures", {}).get("serving_default")
    if not hasattr(model, "translate") or signature is None:
        raise ValueError(f"{directory} is a SavedModel that lingvo-moe-export did not make.")
    return model, set(signature.structured_input_signature[1]) - {"sentences"}


def call(model, sentences, languages):
    """Calls `model.translate`.

    Raises:
        ValueError: the model does not know a language.
    """
    try:
        return model.translate(tf.constant(sentences), **languages)
    except tf.errors.InvalidArgumentError as error:
        said = re.search(r"assertion failed: \[(.*?)\]", error.message)
        if said is None:
            raise
        raise ValueError(said[1].strip()) from error


def main():
    """Prints the best translation of each sentence, one a line."""
    args = parse()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    model, wanted = load(args.model)
    given = {"target_language": args.to, "source_language": args.source_language}
    for name in sorted(wanted):
        if given[name] is None:
            raise ValueError(f"This model routes by {name.replace('_', ' ')}; give --{name}.")
    languages = {name: tf.constant(given[name]) for name in wanted}
    if args.sentences:
        sentences = list(decode_lines(map(os.fsencode, args.sentences), "the arguments"))
    else:
        sentences = list(decode_lines(sys.stdin.buffer, "standard input"))
    left_out: dict[int, int] = {}
    for start in range(0, len(sentences), args.batch_size):
        output = call(model, sentences[start : start + args.batch_size], languages)
        for best in output["translations"][:, 0].numpy():
            print(best.decode())
        for number, tokens in enumerate(output["left_out"].numpy(), start + 1):
            left_out |= {number: int(tokens)} if tokens else {}
    if left_out:
        print(cut_warning(left_out), file=sys.stderr)


if __name__ == "__main__":
    main()
