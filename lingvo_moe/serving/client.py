"""Translates with an exported model. Needs only tensorflow and tensorflow-text.

python translate.py [--to=LANGUAGE] [SENTENCE ...]      (or sentences on standard input, one a line)

Models that route by source language also need --source_language=LANGUAGE. --set gives an option,
such as --set=beam_size=8 or --set=target_prefix='The cat'; `model.about()` lists all options.
"""

import argparse
import ast
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
    parser.add_argument("--n_best", type=int, default=1, help="translations of a sentence")
    parser.add_argument("--scores", action="store_true", help="print scores too")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    args = parser.parse_args()
    for name in ("batch_size", "n_best"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be >= 1, got {getattr(args, name)}")
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


def options_of(model, texts):
    """The options of `--set` texts, as tensors.

    Raises:
        ValueError: the model has no such option, or the value is of another type.
    """
    known, options = model.about().get("options", {}), {}
    for text in texts:
        name, _, value = text.removeprefix("decoding.").partition("=")
        if name not in known:
            names = ", ".join(sorted(known)) or "none: export again with a newer lingvo_moe"
            raise ValueError(f"--set={text}: unknown option {name!r}. This export has {names}.")
        default = known[name]
        try:
            is_text = default.dtype == tf.string and not default.shape.rank
            read = value if is_text else ast.literal_eval(value)
            options[name] = tf.ensure_shape(
                tf.constant(read, default.dtype), [None] * default.shape.rank
            )
        except (ValueError, TypeError, SyntaxError, tf.errors.InvalidArgumentError) as error:
            kind = "a list of texts, such as ['dog']" if default.shape.rank else default.dtype.name
            raise ValueError(f"--set={text}: {name} must be {kind}.") from error
    return options


def call(function, *texts, **given):
    """Calls a function of a model.

    Raises:
        ValueError: the model does not know a language, or an option does not fit.
    """
    try:
        given = {name: tf.convert_to_tensor(value) for name, value in given.items()}
        return function(*map(tf.constant, texts), **given)
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
    options, translate = options_of(model, args.set), model.translate
    if args.n_best > 1:
        options |= options_of(model, [f"n_best={args.n_best}"])
    if options:
        translate = model.translate_with
        options.setdefault("n_best", tf.constant(1))
    if args.sentences:
        sentences = list(decode_lines(map(os.fsencode, args.sentences), "the arguments"))
    else:
        sentences = list(decode_lines(sys.stdin.buffer, "standard input"))
    scores = args.scores or args.n_best > 1
    left_out: dict[int, int] = {}
    for start in range(0, len(sentences), args.batch_size):
        batch = sentences[start : start + args.batch_size]
        output = call(translate, batch, **languages, **options)
        rows = zip(output["translations"].numpy(), output["scores"].numpy(), strict=True)
        for texts, values in rows:
            for text, score in list(zip(texts, values, strict=True))[: args.n_best]:
                print((f"{score:.4f}\t" if scores else "") + text.decode())
        for number, tokens in enumerate(output["left_out"].numpy(), start + 1):
            left_out |= {number: int(tokens)} if tokens else {}
    if left_out:
        print(cut_warning(left_out), file=sys.stderr)


if __name__ == "__main__":
    main()
