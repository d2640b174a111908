"""Translates with an exported model. Needs only tensorflow and tensorflow-text.

python translate.py [--to=LANGUAGE] [SENTENCE ...]      (or sentences on standard input, one a line)
python translate.py --to=LANGUAGE --score=TRANSLATIONS < SENTENCES

Models that route by source language also need --source_language=LANGUAGE. --set gives an option,
such as --set=beam_size=8 or --set=target_prefix='The cat'; `model.about()` lists all options.
"""

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from lingvo_moe.core.console import install, quiet
from lingvo_moe.serving.client_command import parser, run
from lingvo_moe.tasks.languages import check_source_language, check_target_language

if __name__ == "__main__":
    install((ImportError, OSError, ValueError))  # one-line errors, also during imports
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors are exceptions

with quiet():
    import tensorflow as tf


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
        # It registers the SentencePiece ops of the graph. It is imported here because it imports
        # Keras, and Keras imports JAX if that is installed: 2 seconds and 260 MB.
        import tensorflow_text  # noqa: F401

        try:
            model = tf.saved_model.load(directory)
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


class Model:
    """An export in memory; a client_command.Service."""

    def __init__(self, directory, languages):
        """Loads it.

        Args:
            directory: the export.
            languages: the arguments target_language and source_language; None for not given.
        """
        self._model, wanted = load(directory)
        for name in sorted(wanted):
            if languages[name] is None:
                raise ValueError(f"This model routes by {name.replace('_', ' ')}; give --{name}.")
        about = self._model.about()
        check_source_language(languages["source_language"], plain(about["source_languages"]))
        check_target_language(languages["target_language"], plain(about["languages"]))
        self._languages = {name: languages[name] for name in wanted}
        self._called: set[str] = set()
        self._defaults = about.get("options", {})
        self.options = plain(self._defaults)
        self.part_pieces, self.pairs, self.forms = (
            plain(about[name]) for name in ("part_pieces", "pairs", "forms")
        )
        penalties = plain(about["languages"]), plain(about["length_penalty"])
        self.penalties: Mapping[str, float] = dict(zip(*penalties, strict=True))

    def sizes(self, sentences):
        """Numbers of tokens."""
        return self._call("count_pieces", sentences)

    def target_sizes(self, translations):
        """Numbers of tokens."""
        return self._call("count_target_pieces", translations)

    def translate(self, sentences, options):
        """The outputs of the graph."""
        given = {n: tf.constant(v, self._defaults[n].dtype) for n, v in options.items()}
        name = "translate_with" if options else "translate"
        return self._call(name, sentences, **self._languages, **given)

    def score(self, sentences, translations):
        """The outputs of the graph."""
        return self._call("score", sentences, translations, **self._languages)

    def _call(self, name, *texts, **given):
        """The outputs of a function. In the first call SentencePiece logs its normalization."""
        with contextlib.nullcontext() if name in self._called else quiet():
            self._called.add(name)
            return plain(call(getattr(self._model, name), *texts, **given))


def plain(value):
    """Tensors, also in dicts and lists, as lists, numbers and texts."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return list(map(plain, value))
    if tf.is_tensor(value):
        value = value.numpy()
        return plain(value.tolist() if hasattr(value, "tolist") else value)
    return value.decode() if isinstance(value, bytes) else value


def main():
    """Prints the best translation of each sentence, one a line."""
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--model", default=str(Path(__file__).resolve().parent))
    args = flags.parse_args()
    given = {"target_language": args.to, "source_language": args.source_language}
    run(args, Model(args.model, given))


if __name__ == "__main__":
    main()
