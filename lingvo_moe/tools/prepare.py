r"""Turns raw parallel text, or the embedded synthetic languages, into a dataset.

lingvo-moe-prepare --corpus=DIR --output=build/data
lingvo-moe-prepare --synthetic --output=build/data
lingvo-moe-prepare --corpus=DIR --output=DIR --beam -- --runner=FlinkRunner
"""

import dataclasses
from typing import Any

from lingvo_moe import api
from lingvo_moe.config.params import override
from lingvo_moe.data.normalization import NORMALIZATIONS
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
_D = PrepareParams()
TABLE = (
    Flag("corpus", str, None,
         "Directory with SPLIT/SRC-TGT.SRC and SPLIT/SRC-TGT.TGT, or SPLIT/SRC-TGT.tsv or .tmx; "
         "each may be compressed (.gz, .zst)."),
    Flag("synthetic", bool, False, "Use the embedded synthetic languages instead."),
    Flag("zero_shot", NAMES, None,
         "With --synthetic: pairs such as qna-qka with dev and test text only."),
    Flag("output", str, None, "Directory for the dataset.", required=True),
    Flag("source_vocab_size", int, _D.source_vocab_size,
         "Largest number of pieces of the source vocabulary."),
    Flag("target_vocab_size", int, _D.target_vocab_size,
         "Largest number of pieces of the target vocabulary."),
    Flag("source_normalization", tuple(NORMALIZATIONS), _D.source_normalization,
         "Normalization of source texts; identity changes nothing."),
    Flag("target_normalization", tuple(NORMALIZATIONS), _D.target_normalization,
         "Normalization of target texts; identity changes nothing."),
    Flag("extend", str, _D.extend,
         "Logdir or dataset whose vocabularies are extended by --new_pieces."),
    Flag("tags_on_both_sides", bool, _D.tags_on_both_sides,
         "Begin each side with its language's tag, as imported models do. It "
         "needs --joint_vocab."),
    Flag("new_pieces", int, _D.new_pieces, "Pieces that --extend adds at most."),
    Flag("joint_vocab", bool, _D.joint_vocab,
         "One vocabulary for both sides, of --source_vocab_size and --target_normalization."),
    Flag("temperature", float, _D.temperature,
         "T: vocabularies sample languages by size^(1/T)."),
    Flag("character_coverage", float, _D.character_coverage,
         "Share of characters that get a piece; the others are written as bytes."),
    Flag("max_length", int, _D.max_length, "Leave out longer train examples, in tokens."),
    Flag("both_directions", bool, _D.both_directions, "Add the reverse of each pair."),
    Flag("vocab_sentences", int, _D.vocab_sentences,
         "Most sentences that a vocabulary is trained on."),
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
        overwrite=FLAGS.overwrite,
        report=common.report,
        **{field.name: getattr(params, field.name) for field in _FIELDS},
    )
    print(format_dataset(dataset))


if __name__ == "__main__":
    main()
