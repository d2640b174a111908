r"""Translates files, standard input, or the sentences given as arguments, one a line.

lingvo-moe-translate --logdir=/tmp/tiny --to=en 'a sentence' 'another'
lingvo-moe-translate --logdir=/tmp/tiny --to=en --input=test.de --output=test.hyp
lingvo-moe-translate --logdir=/tmp/tiny --to=en --input=test.de --output=test.hyp --processes=4
lingvo-moe-translate --logdir=/tmp/tiny --to=en --n_best=4 < test.de
"""

import functools
import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from lingvo_moe.config import child
from lingvo_moe.config.params import override
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.inference.parts import Translation
from lingvo_moe.inference.texts import BLOCK, TextTranslator
from lingvo_moe.jobs.model import Model
from lingvo_moe.jobs.shards import Shards, Survey, translate_shards
from lingvo_moe.serving.exported import Exported, is_saved_model
from lingvo_moe.system import lock
from lingvo_moe.system.files import check_file, is_stream, remove_partials, write_whole
from lingvo_moe.system.lines import COMPRESSED, ArrivingLines, decode_lines, read_lines
from lingvo_moe.system.progress import Progress
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tools import common, runtimes
from lingvo_moe.tools.common import FLAGS, Flag

TABLE = (
    Flag("logdir", str, None, "A logdir, or an exported SavedModel.", required=True),
    common.CHECKED_MODEL,
    Flag("to", str, "en", "Language to translate into."),
    Flag("source_language", str, None,
         "Language of the sentences, for models that route by it, and for NLLB and M2M-100."),
    Flag("input", str, None,
         "File to translate, UTF-8; it may be compressed (.gz, .zst). By default standard input."),
    Flag("output", str, None,
         "File to write; standard output by default. The same command resumes."),
    Flag("processes", int, 1, "Number of processes on this machine.", least=1),
    Flag("worker", int, 0, "Set by --processes: number of this process, from 0.", least=0),
    Flag("n_best", int, None, "Number of translations per sentence.", least=1),
    Flag("beam_size", int, None, "Short for --set=decoding.beam_size=…", least=1),
    Flag("scores", bool, False, "Print each score and a tab before its translation."),
    common.STEP,
    common.SET,
    *runtimes.TABLE,
)  # fmt: skip


@common.tool(TABLE, takes_arguments=True)
def main(arguments: list[str]) -> None:
    """Flags to a model. Errors of flags and input are found before the weights are read."""
    runtimes.check_flags()
    of_model = [text.partition("=")[0].strip() for text in FLAGS.set]
    of_model = [field for field in of_model if not field.startswith("decoding.")]
    if is_saved_model(Path(FLAGS.logdir)):
        needed = ("processes", "step", "runtime", "model", *of_model)
        common.check_effect("with a logdir", False, *needed)
        model_dir = None
    else:
        model_dir = ModelDir.open(Path(FLAGS.logdir), FLAGS.model).with_overrides(_overrides())
        model_dir.prefix(FLAGS.source_language, FLAGS.to)
        model_dir.task.task_id(FLAGS.source_language, FLAGS.to)
    _check_suffix()
    if arguments and FLAGS.input:
        raise ValueError("Give sentences as arguments or in --input, not both.")
    if model_dir and (shards := _shards()):
        _translate_shards(model_dir, shards)
    else:
        _write(_output(), _translations(model_dir, arguments))


def _check_suffix() -> None:
    output = Path(FLAGS.output or "")
    if output.suffix in (".gz", ".zst") and not output.is_dir():
        raise ValueError(
            f"--output={output}: what is written is not compressed. Give {output.with_suffix('')}, "
            f"and compress it afterwards."
        )


def _shards() -> Shards | None:
    """The file to translate in shards; None for streams: pipes, devices, arguments."""
    if FLAGS.input and Path(FLAGS.input).is_dir():
        raise ValueError(f"--input={FLAGS.input} is a directory; give a file.")
    if FLAGS.input and FLAGS.output:
        source, output = Path(FLAGS.input), Path(FLAGS.output)
        whole = not is_stream(source) and not is_stream(output)
        if whole and source.is_file() and (output.is_file() or not output.exists()):
            return Shards(source, output, BLOCK)
    if FLAGS.processes > 1:
        raise ValueError("--processes needs --input and --output, which are files.")
    return None


def _translate_shards(model_dir: ModelDir, shards: Shards) -> None:
    """Translates files; workers share the work, and their shards are done here if they fail."""
    if FLAGS.worker:
        _share(model_dir, shards, child.receive(), lambda line: None)
        return
    work = shards.survey()
    with shards.merged():
        workers = [
            child.start("lingvo_moe.tools.translate", f"--worker={index}", *sys.argv[1:])
            for index in range(1, FLAGS.processes)
        ]
        for worker in workers:
            child.send(worker, work)
        _share(model_dir, shards, work, common.report)
        for index, worker in enumerate(workers, start=1):
            if status := worker.wait():
                common.report(f"Worker {index} ended with status {status}; others did its work.")


def _share(model_dir: ModelDir, shards: Shards, work: Survey, report) -> None:
    """Translates the shards that no other process translates."""
    _share_machine(FLAGS.worker, FLAGS.processes)
    model = Model(model_dir, runtimes.make_runtime, FLAGS.step)
    translator = model.translator()

    def translate(shard, progress):
        def warn(line):
            common.report(f"{shards.input}: {line}")

        return _lines(translator, shard.sentences, progress, warn, shard.first_line)

    job = {
        **model_dir.fingerprint(model.step),
        "to": FLAGS.to,
        "source_language": str(FLAGS.source_language),
        "scores": str(FLAGS.scores),
        "runtime": FLAGS.runtime,
    }
    translate_shards(shards, work, job, translate, report)


def _share_machine(index: int, count: int) -> None:
    """Gives each of several processes its share of the cores, and one GPU."""
    if count == 1:
        return
    cores = max(1, len(os.sched_getaffinity(0)) // count)
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    tf.config.threading.set_inter_op_parallelism_threads(cores)
    if gpus := tf.config.list_physical_devices("GPU"):
        gpu = gpus[index % len(gpus)]
        tf.config.set_visible_devices(gpu, "GPU")
        tf.config.experimental.set_memory_growth(gpu, True)  # several processes may share it


def _translations(model_dir: ModelDir | None, arguments: Sequence[str]) -> Iterator[str]:
    sentences, total = _sentences(arguments)
    translator = _load(model_dir).translator(**({} if model_dir else _options()))
    return _lines(translator, sentences, Progress(common.report, total), common.report)


def _output() -> Path | None:
    """The file to write, checked; None for standard output."""
    if not FLAGS.output:
        return None
    check_file(Path(FLAGS.output), *([Path(FLAGS.input)] if FLAGS.input else []))
    return Path(FLAGS.output)


def _write(output: Path | None, lines: Iterable[str]) -> None:
    if output is None:
        for line in lines:
            print(line, end="", flush=True)
    elif is_stream(output):
        write_whole(output, lines)
    else:
        with lock.hold(output.parent, f".{output.name}.lock") as locked:
            if locked:
                remove_partials(output)  # of a killed run
            write_whole(output, lines)


def _load(model_dir: ModelDir | None) -> Model | Exported:
    if model_dir is None:
        return Exported(FLAGS.logdir)
    return Model(model_dir, runtimes.make_runtime, FLAGS.step)


def _lines(translator: TextTranslator, sentences: Iterable[str], *options: Any) -> Iterator[str]:
    """Translations, one a line; options are those of `TextTranslator.stream`."""
    results = translator.stream(sentences, FLAGS.to, FLAGS.source_language, *options)
    scores = FLAGS.scores or translator.decoding.n_best > 1
    form = functools.partial(_format, translator.decoding.tokens, scores)
    return map(form, itertools.chain.from_iterable(results))


def _overrides() -> list[str]:
    beam_size = [] if FLAGS.beam_size is None else [f"decoding.beam_size={FLAGS.beam_size}"]
    n_best = [] if FLAGS.n_best is None else [f"decoding.n_best={FLAGS.n_best}"]
    return [*FLAGS.set, *beam_size, *n_best]


def _options() -> dict[str, Any]:
    """The options of a request to an export."""
    texts = [text.strip().removeprefix("decoding.") for text in _overrides()]
    search = override(BeamSearchParams(), texts)
    return {name: getattr(search, name) for name in (re.split(r"[.\s=]", t)[0] for t in texts)}


def _sentences(arguments: Sequence[str]) -> tuple[Iterable[str], int | None]:
    """The sentences and their number; None for a stream.

    A file is read twice, so that an error in its last line is found before hours of work.
    """
    if arguments:
        sentences = list(decode_lines(map(os.fsencode, arguments), "the arguments"))
        return sentences, len(sentences)
    if not FLAGS.input:
        return ArrivingLines(sys.stdin.buffer, "standard input"), None
    path = Path(FLAGS.input)
    if path.exists() and not path.is_file():  # a pipe can be read only once
        if path.suffix in COMPRESSED:
            return read_lines(path), None
        return ArrivingLines(path.open("rb"), str(path)), None
    return read_lines(path), sum(1 for _ in read_lines(path))


def _format(tokens: bool, score: bool, translation: Translation) -> str:
    """A line of the output: JSON with the tokens, or the text, with its score if requested."""
    if tokens:
        return json.dumps(translation.as_json(tokens), ensure_ascii=False) + "\n"
    return (f"{translation.score:.4f}\t" if score else "") + translation.text + "\n"


if __name__ == "__main__":
    main()
