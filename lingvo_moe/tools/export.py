r"""Exports a trained model: SavedModel, TensorFlow Serving, CTranslate2, StableHLO or weights.

lingvo-moe-export --logdir=/tmp/tiny --output=/tmp/tiny_export
lingvo-moe-export --logdir=/tmp/tiny --output=/tmp/tiny_int8 --dtype=int8 --report_data=/tmp/data
lingvo-moe-export --logdir=/tmp/tiny --output=/tmp/tiny_weights --format=safetensors
lingvo-moe-export --logdir=/tmp/dense --output=/tmp/dense_ct2 --format=ctranslate2
lingvo-moe-export --logdir=/tmp/nllb --output=/tmp/nllb_again --format=huggingface
lingvo-moe-export --logdir=/tmp/tiny --output=/tmp/tiny_hlo --format="StableHLO(batch_size=8)"
lingvo-moe-export --model=tiny.MoE --output=/tmp/tiny_step --format=stablehlo    # untrained
"""

import dataclasses
import os
from pathlib import Path

from absl import flags

from lingvo_moe import api
from lingvo_moe.core.params import classes, override, parse_policy
from lingvo_moe.core.registry import get_params
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving.formats.base import Format, directory_size
from lingvo_moe.serving.formats.storage import FLOAT32, STORAGES
from lingvo_moe.serving.prune import CHOICES, STATISTICS, Pruning
from lingvo_moe.serving.report import comparable_pairs, compare, compare_sizes
from lingvo_moe.tasks.evaluation import load_translator
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tools import common

FLAGS = flags.FLAGS


def main() -> None:
    """Flags to an export."""
    # An export computes nothing on devices, so JAX must not reserve a GPU's memory.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    of_pruning = ("languages", "prune_by", "prune_statistics", "prune_ratio")
    common.check_effect("with --prune", FLAGS.prune is not None, *of_pruning)
    common.check_effect("with --report_data", bool(FLAGS.report_data), "report_split")
    common.check_effect("with --logdir", FLAGS.logdir is not None, "report_data", "step", "prune")
    chosen, pruning, output = _format(), _pruning(), Path(FLAGS.output)
    if FLAGS.logdir is None:
        _export_untrained(chosen, output)
        return
    model_dir = ModelDir.open(Path(FLAGS.logdir), FLAGS.model).with_overrides(FLAGS.set)
    dataset = Dataset.load(Path(FLAGS.report_data)) if FLAGS.report_data else None
    pairs = []
    if dataset:
        kept = pruning.pairs(model_dir) if pruning else chosen.pairs(model_dir)
        pairs = comparable_pairs(model_dir, dataset, FLAGS.report_split, kept)
    options = {"step": FLAGS.step, "overwrite": FLAGS.overwrite, "pruning": pruning}
    step = api.export(model_dir, output, chosen, **options)
    hint = chosen.hint(output, pruning.narrow(model_dir) if pruning else model_dir)
    size = directory_size(output) / 1e6
    common.report(f"Exported step {step} to {output}, {size:,.1f} MB. Try: {hint}")
    if dataset:
        translator, _ = load_translator(model_dir, Local(model_dir.task), step)
        exported = chosen.open(output)
        table = compare(translator, exported, dataset, FLAGS.report_split, pairs, common.report)
        print(table.to_text())
        if chosen.storage.widens or pruning:
            print(compare_sizes(chosen, model_dir, output, step))


def _export_untrained(chosen: Format, output: Path) -> None:
    if FLAGS.model is None:
        raise ValueError("Give --logdir, or --model for a training step without a checkpoint.")
    params = override(get_params(FLAGS.model), FLAGS.set)
    api.export(params, output, chosen, name=FLAGS.model, overwrite=FLAGS.overwrite)
    hint = chosen.hint(output)
    common.report(f"Exported {FLAGS.model}, untrained, to {output}. Try: {hint}")


def _format() -> Format:
    """The policy of --format and --dtype; the name of a class may be written in lower case."""
    short = {cls.__name__.lower(): cls.__name__ for cls in classes(Format)}
    text = short.get(FLAGS.format.replace("_", ""), FLAGS.format)
    chosen = parse_policy(Format, text, "--format")
    if FLAGS.dtype is None:
        return chosen
    if chosen.storage != FLOAT32:
        raise ValueError(
            f"--dtype={FLAGS.dtype} and --format={FLAGS.format} both give the storage; drop one."
        )
    return dataclasses.replace(chosen, storage=STORAGES[FLAGS.dtype])


def _pruning() -> Pruning | None:
    if FLAGS.prune is None:
        return None
    return Pruning(
        share=FLAGS.prune,
        languages=tuple(FLAGS.languages),
        statistics=STATISTICS[FLAGS.prune_statistics or "pair"],
        choice=dataclasses.replace(CHOICES[FLAGS.prune_by or "layer"], ratio=FLAGS.prune_ratio),
    )


def run() -> None:
    """The console script."""
    flags.DEFINE_string("logdir", None, "Directory of a trained model.")
    flags.DEFINE_string("output", None, "Directory to write the export to.", required=True)
    flags.DEFINE_bool("overwrite", False, "Replace an earlier export in --output.")
    flags.DEFINE_string(
        "model", None, "Check that the logdir is of this model; without a logdir, export it."
    )
    flags.DEFINE_integer("step", None, "Step of the checkpoint; by default the best on dev.")
    flags.DEFINE_string(
        "format",
        "saved_model",
        "A class of lingvo_moe.serving.formats or of --import, with its fields: "
        '"StableHLO(batch_size=8)". SavedModel: for TensorFlow; TFServing; Safetensors: only '
        "weights, for --logdir of all tools; CTranslate2; HuggingFace: for transformers, if the "
        "model was imported; StableHLO: for JAX. Short: saved_model, stablehlo and so on.",
    )
    flags.DEFINE_enum(
        "dtype",
        None,
        list(STORAGES),
        "Type of weights in the file, by default float32: bfloat16 is half the size, int8 a "
        "quarter.",
    )
    flags.DEFINE_float(
        "prune", None, "Remove this share of the experts, those with least importance on dev."
    )
    common.define_names(
        "languages",
        "With --prune: languages (de: all pairs that have it) or pairs (de-en) of the "
        "export; by default all.",
    )
    flags.DEFINE_enum(
        "prune_by",
        None,
        list(CHOICES),
        "With --prune: remove the same share in every layer (default), or use one threshold for "
        "all layers.",
    )
    flags.DEFINE_enum(
        "prune_statistics",
        None,
        list(STATISTICS),
        "With --prune: whose tokens on dev decide. pair (default): those of the exported pairs; "
        "language: for the encoder all pairs of the source language, for the decoder all of the "
        "target language; all: all pairs of the model.",
    )
    flags.DEFINE_float(
        "prune_ratio",
        None,
        "With --prune: experts that an encoder layer keeps for each of a decoder layer; by "
        "default no ratio.",
    )
    flags.DEFINE_string(
        "report_data",
        None,
        "Prepared data: translate it with the model and with the export; compare BLEU and size.",
    )
    flags.DEFINE_enum(
        "report_split", "test", ["dev", "test"], "Which lines of --report_data to translate."
    )
    flags.DEFINE_multi_string("set", [], common.SET_HELP)
    common.run(main)


if __name__ == "__main__":
    run()
