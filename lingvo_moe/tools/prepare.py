r"""Turns raw parallel text, or the embedded synthetic languages, into a dataset.

lingvo-moe-prepare --corpus=DIR --output=build/data
lingvo-moe-prepare --synthetic --output=build/data
lingvo-moe-prepare --corpus=DIR --output=DIR --beam -- --runner=FlinkRunner
"""

import dataclasses
from typing import Any

from absl import flags

from lingvo_moe import api
from lingvo_moe.core.params import override
from lingvo_moe.data.normalization import NORMALIZATIONS
from lingvo_moe.data.prepare import PrepareParams, format_dataset
from lingvo_moe.data.synthetic import SyntheticCorpus
from lingvo_moe.tools import common

FLAGS = flags.FLAGS
_DEFAULTS = PrepareParams()
_OF_NEW_VOCABULARIES = (
    "source_vocab_size",
    "target_vocab_size",
    "source_normalization",
    "target_normalization",
)
_FIELDS = dataclasses.fields(PrepareParams)


def main(arguments: list[str]) -> None:
    """Flags to api.prepare."""
    if arguments and not FLAGS.beam:
        raise ValueError(
            f"Unexpected arguments {arguments}; flags begin with --, and options of a Beam "
            f"pipeline need --beam."
        )
    if bool(FLAGS.corpus) == FLAGS.synthetic:
        raise ValueError("Pass either --corpus=DIR or --synthetic.")
    common.check_effect("with --synthetic", FLAGS.synthetic, "zero_shot")
    options: dict[str, Any] = {
        field.name: FLAGS[field.name].value for field in _FIELDS if field.name in FLAGS
    }
    params = override(PrepareParams(**options), FLAGS.set)
    common.check_effect("with --extend", bool(params.extend), "new_pieces")
    common.check_effect("without --extend", not params.extend, *_OF_NEW_VOCABULARIES)
    of_two = ("target_vocab_size", "source_normalization")
    common.check_effect("without --joint_vocab", not params.joint_vocab, *of_two)
    raw = SyntheticCorpus(zero_shot=tuple(FLAGS.zero_shot)) if FLAGS.synthetic else FLAGS.corpus
    dataset = api.prepare(
        raw,
        FLAGS.output,
        processes=FLAGS.processes,
        beam=arguments if FLAGS.beam else None,
        memory_mb=FLAGS.memory_mb,
        card=FLAGS.card,
        overwrite=FLAGS.overwrite,
        report=common.report,
        **{field.name: getattr(params, field.name) for field in _FIELDS},
    )
    print(format_dataset(dataset))


def run() -> None:
    """The console script."""
    d = _DEFAULTS
    flags.DEFINE_string(
        "corpus",
        None,
        "Directory with SPLIT/SRC-TGT.SRC and SPLIT/SRC-TGT.TGT, or SPLIT/SRC-TGT.tsv or .tmx; "
        "each may be compressed (.gz, .zst).",
    )
    flags.DEFINE_bool("synthetic", False, "Use the embedded synthetic languages instead.")
    common.define_names(
        "zero_shot", "With --synthetic: pairs such as qna-qka with dev and test text only."
    )
    flags.DEFINE_string("output", None, "Directory for the dataset.", required=True)
    for side, size in (("source", d.source_vocab_size), ("target", d.target_vocab_size)):
        flags.DEFINE_integer(
            f"{side}_vocab_size", size, f"Largest number of pieces of the {side} vocabulary."
        )
    rules: dict[str, str] = {"source": d.source_normalization, "target": d.target_normalization}
    for side, default in rules.items():
        flags.DEFINE_enum(
            f"{side}_normalization",
            default,
            NORMALIZATIONS,
            f"Normalization of {side} texts; identity changes nothing.",
        )
    flags.DEFINE_string(
        "extend", d.extend, "Logdir or dataset whose vocabularies are extended: docs/finetuning.md."
    )
    flags.DEFINE_bool(
        "tags_on_both_sides",
        d.tags_on_both_sides,
        "Begin each side with its language's tag, as imported models do: docs/pretrained.md. It "
        "needs --joint_vocab.",
    )
    flags.DEFINE_integer("new_pieces", d.new_pieces, "Pieces that --extend adds at most.")
    flags.DEFINE_bool(
        "joint_vocab",
        d.joint_vocab,
        "One vocabulary for both sides, of --source_vocab_size and --target_normalization.",
    )
    flags.DEFINE_float(
        "temperature", d.temperature, "T: vocabularies sample languages by size^(1/T)."
    )
    flags.DEFINE_float(
        "character_coverage",
        d.character_coverage,
        "Share of characters that get a piece; the others are written as bytes.",
    )
    flags.DEFINE_integer("max_length", d.max_length, "Leave out longer train examples, in tokens.")
    flags.DEFINE_bool("both_directions", d.both_directions, "Add the reverse of each pair.")
    flags.DEFINE_integer(
        "vocab_sentences",
        d.vocab_sentences,
        "Most sentences that a vocabulary is trained on.",
    )
    flags.DEFINE_multi_string(
        "set", [], "Cleaning rules, such as --set='cleaning=(LengthRatio(),)': docs/data.md."
    )
    flags.DEFINE_integer("processes", None, "Number of processes; by default one per core.", 1)
    flags.DEFINE_bool(
        "beam",
        False,
        "Make the pieces in an Apache Beam pipeline; its options follow after --: docs/data.md.",
    )
    flags.DEFINE_integer(
        "memory_mb",
        1000,
        "Memory for sorting, in MB: of all processes together; with --beam, of each process.",
        1,
    )
    flags.DEFINE_bool("card", True, "Write a page about the data: OUTPUT/card/index.html.")
    flags.DEFINE_bool(
        "overwrite",
        False,
        "Replace the dataset in --output. Discard an unfinished one that other flags began.",
    )
    common.run(main, takes_arguments=True)


if __name__ == "__main__":
    run()
