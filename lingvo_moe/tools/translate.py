r"""Translates files, standard input, or the sentences given as arguments, one a line.

lingvo-moe-translate --logdir=/tmp/tiny --to=en 'a sentence' 'another'
lingvo-moe-translate --logdir=/tmp/tiny --to=en --input=test.de --output=test.hyp
lingvo-moe-translate --logdir=/tmp/tiny --to=en --n_best=4 < test.de
"""

import sys
from pathlib import Path

from absl import flags
from tqdm import tqdm

from lingvo_moe.tasks.evaluation import load_translator
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tools import common, runtimes

FLAGS = flags.FLAGS


def main(argv: list[str]) -> None:
    """Flags to a Translator."""
    overrides = list(FLAGS.set)
    if FLAGS.beam_size is not None:
        overrides.append(f"decoding.beam_size={FLAGS.beam_size}")
    overrides.append(f"decoding.n_best={FLAGS.n_best}")
    model_dir = ModelDir.open(Path(FLAGS.logdir), FLAGS.model).with_overrides(overrides)
    translator, _ = load_translator(model_dir, runtimes.make_runtime(model_dir.task), FLAGS.step)
    sentences = argv[1:] or _read_lines(FLAGS.input)
    with tqdm(total=len(sentences), unit="sentence", disable=None) as bar:
        results = translator(sentences, FLAGS.to, FLAGS.source_language, bar.update)
    with open(FLAGS.output, "w", encoding="utf-8") if FLAGS.output else sys.stdout as out:
        for translations in results:
            out.writelines(_format(t, FLAGS.n_best, FLAGS.scores) for t in translations)


def _format(translation, n_best, scores):
    if scores or n_best > 1:
        return f"{translation.score:.4f}\t{translation.text}\n"
    return translation.text + "\n"


def _read_lines(path: str | None) -> list[str]:
    data = Path(path).read_bytes() if path else sys.stdin.buffer.read()
    try:
        return data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{path or 'standard input'}, line {line}: not UTF-8 ({error.reason}). Convert it, for "
            f"example with iconv."
        ) from error


def run() -> None:
    """The console script."""
    flags.DEFINE_string("logdir", None, "Directory of a trained model.", required=True)
    flags.DEFINE_string("model", None, "Check that the logdir is of this model.")
    flags.DEFINE_string("to", "en", "Language to translate into.")
    flags.DEFINE_string(
        "source_language", None, "Language of the sentences, for models that route by it."
    )
    flags.DEFINE_string("input", None, "File to translate, UTF-8; standard input by default.")
    flags.DEFINE_string("output", None, "File to write; standard output by default.")
    flags.DEFINE_integer("n_best", 1, "Translations a sentence.", lower_bound=1)
    flags.DEFINE_integer("beam_size", None, "Short for --set=decoding.beam_size=…", lower_bound=1)
    flags.DEFINE_bool("scores", False, "Print each score and a tab before its translation.")
    flags.DEFINE_integer("step", None, "Which checkpoint; by default the best on dev.")
    flags.DEFINE_multi_string("set", [], common.SET_HELP)
    runtimes.define_flags()
    common.run(main, takes_arguments=True)


if __name__ == "__main__":
    run()
