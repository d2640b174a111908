r"""Translates files, standard input, or the sentences given as arguments, one a line.

lingvo-moe-translate --logdir=/tmp/tiny --to=en 'a sentence' 'another'
lingvo-moe-translate --logdir=/tmp/tiny --to=en --input=test.de --output=test.hyp
lingvo-moe-translate --logdir=/tmp/tiny --to=en --n_best=4 < test.de
"""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from absl import flags
from tqdm import tqdm

from lingvo_moe.core.files import check_file, write_whole
from lingvo_moe.core.lines import decode_lines, read_lines
from lingvo_moe.tasks.evaluation import load_translator
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.translator import Translation
from lingvo_moe.tools import common, runtimes

FLAGS = flags.FLAGS


def main(argv: list[str]) -> None:
    """Flags to a Translator. What may be wrong is found before the weights are read."""
    output = Path(FLAGS.output) if FLAGS.output else None
    if output:
        check_file(output)
    model_dir = ModelDir.open(Path(FLAGS.logdir), FLAGS.model).with_overrides(_overrides())
    model_dir.tag(FLAGS.to)
    model_dir.task.task_id(FLAGS.source_language, FLAGS.to)
    sentences, total = _sentences(argv[1:])
    translator, _ = load_translator(model_dir, runtimes.make_runtime(model_dir.task), FLAGS.step)
    scores = FLAGS.scores or FLAGS.n_best > 1
    with tqdm(total=total, unit="sentence", disable=None) as bar:
        results = translator.stream(
            sentences, FLAGS.to, FLAGS.source_language, bar.update, common.report
        )
        lines = (_format(t, scores) for translations in results for t in translations)
        if output:
            write_whole(output, lines)
        else:
            sys.stdout.writelines(lines)


def _overrides() -> list[str]:
    beam_size = [] if FLAGS.beam_size is None else [f"decoding.beam_size={FLAGS.beam_size}"]
    return [*FLAGS.set, *beam_size, f"decoding.n_best={FLAGS.n_best}"]


def _sentences(arguments: Sequence[str]) -> tuple[Iterable[str], int | None]:
    """The sentences, and how many there are; None if only reading tells.

    A file is read twice, so that what is wrong with its last line is said before hours of work.
    """
    if arguments and FLAGS.input:
        raise ValueError("Give sentences as arguments or in --input, not both.")
    if arguments:
        sentences = list(decode_lines(map(os.fsencode, arguments), "the arguments"))
        return sentences, len(sentences)
    if not FLAGS.input:
        return decode_lines(sys.stdin.buffer, "standard input"), None
    path = Path(FLAGS.input)
    if path.exists() and not path.is_file() and not path.is_dir():  # a pipe is read but once
        return read_lines(path), None
    return read_lines(path), sum(1 for _ in read_lines(path))


def _format(translation: Translation, score: bool) -> str:
    return (f"{translation.score:.4f}\t" if score else "") + translation.text + "\n"


def run() -> None:
    """The console script."""
    flags.DEFINE_string("logdir", None, "Directory of a trained model.", required=True)
    flags.DEFINE_string("model", None, "Check that the logdir is of this model.")
    flags.DEFINE_string("to", "en", "Language to translate into.")
    flags.DEFINE_string(
        "source_language", None, "Language of the sentences, for models that route by it."
    )
    flags.DEFINE_string(
        "input", None, "File to translate, UTF-8, also .gz; by default standard input."
    )
    flags.DEFINE_string("output", None, "File to write; standard output by default.")
    flags.DEFINE_integer("n_best", 1, "Number of translations a sentence.", lower_bound=1)
    flags.DEFINE_integer("beam_size", None, "Short for --set=decoding.beam_size=…", lower_bound=1)
    flags.DEFINE_bool("scores", False, "Print each score and a tab before its translation.")
    flags.DEFINE_integer("step", None, "Which checkpoint; by default the best on dev.")
    flags.DEFINE_multi_string("set", [], common.SET_HELP)
    runtimes.define_flags()
    common.run(main, takes_arguments=True)


if __name__ == "__main__":
    run()
