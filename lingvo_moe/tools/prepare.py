r"""Turns raw parallel text, or the embedded synthetic languages, into a dataset.

lingvo-moe-prepare --corpus=DIR --output=build/data
lingvo-moe-prepare --synthetic --output=build/data
lingvo-moe-prepare --corpus=DIR --output=DIR --beam -- --runner=FlinkRunner
"""

import dataclasses
from typing import Any

from lingvo_moe import api
from lingvo_moe.config.params import override
from lingvo_moe.data.prepare import PrepareParams, format_dataset
from lingvo_moe.data.synthetic import SyntheticCorpus
from lingvo_moe.tools import common
from lingvo_moe.tools.common import FLAGS, NAMES, Flag

_OF_NEW_VOCABULARIES = (
    "source_vocab_size",
    "target_vocab_size",
    "source_normalization",
    "target_normalization",
)
_FIELDS = dataclasses.fields(PrepareParams)
TABLE = (
    Flag("corpus", str, None,
         "Directory with SPLIT/SRC-TGT.SRC and SPLIT/SRC-TGT.TGT, or SPLIT/SRC-TGT.tsv or .tmx; "
         "each may be compressed (.gz, .zst)."),
    Flag("synthetic", bool, False, "Use the embedded synthetic languages instead."),
    Flag("zero_shot", NAMES, None,
         "With --synthetic: pairs such as qna-qka with dev and test text only."),
    Flag("private_nouns", int, 0,
         "With --synthetic: replace all nouns by this many invented ones; each language has its "
         "own word for each. So a model has much to remember.", least=0),
    Flag("output", str, None, "Directory for the dataset.", required=True),
    *common.flags_of(
        PrepareParams(),
        *_OF_NEW_VOCABULARIES,
        *("extend", "tags_on_both_sides", "new_pieces", "joint_vocab", "temperature"),
        *("character_coverage", "max_length", "both_directions", "vocab_sentences"),
    ),
    Flag("set", list, [],
         "Cleaning rules, such as --set='cleaning=(LengthRatio(),)'."),
    Flag("processes", int, None, "Number of processes; by default one per core.", least=1),
    Flag("beam", bool, False,
         "Make the pieces in an Apache Beam pipeline; its options follow after --."),
    Flag("memory_mb", int, 1000,
         "Memory for sorting, in MB: of all processes together; with --beam, of each process.",
         least=1),
    Flag("overwrite", bool, False,
         "Replace the dataset in --output. Discard an unfinished one that other flags began."),
)  # fmt: skip


@common.tool(TABLE, takes_arguments=True)
def main(arguments: list[str]) -> None:
    """Flags to api.prepare."""
    if arguments and not FLAGS.beam:
        raise ValueError(
            f"Unexpected arguments {arguments}; flags begin with --, and options of a Beam "
            f"pipeline need --beam."
        )
    if bool(FLAGS.corpus) == FLAGS.synthetic:
        raise ValueError("Pass either --corpus=DIR or --synthetic.")
    common.check_effect("with --synthetic", FLAGS.synthetic, "zero_shot", "private_nouns")
    given = {field.name: FLAGS[field.name].value for field in _FIELDS if field.name in FLAGS}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    params = override(PrepareParams(**options), FLAGS.set)
    common.check_effect("with --extend", bool(params.extend), "new_pieces")
    common.check_effect("without --extend", not params.extend, *_OF_NEW_VOCABULARIES)
    of_two = ("target_vocab_size", "source_normalization")
    common.check_effect("without --joint_vocab", not params.joint_vocab, *of_two)
    made = SyntheticCorpus(zero_shot=tuple(FLAGS.zero_shot), private_nouns=FLAGS.private_nouns)
    raw = made if FLAGS.synthetic else FLAGS.corpus
    dataset = api.prepare(
        raw,
        FLAGS.output,
        processes=FLAGS.processes,
        beam=arguments if FLAGS.beam else None,
        memory_mb=FLAGS.memory_mb,
        overwrite=FLAGS.overwrite,
        report=common.report,
        **{field.name: getattr(params, field.name) for field in _FIELDS},
    )
    print(format_dataset(dataset))


if __name__ == "__main__":
    main()
