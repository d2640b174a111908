r"""Exports a trained model: SavedModel, TensorFlow Serving, CTranslate2, StableHLO or weights.

lingvo-moe-export --logdir=/tmp/tiny --output=/tmp/tiny_export
lingvo-moe-export --logdir=/tmp/tiny --output=/tmp/tiny_int8 --dtype=int8 --report_data=/tmp/data
lingvo-moe-export --logdir=/tmp/tiny --output=/tmp/tiny_weights --format=safetensors
lingvo-moe-export --logdir=/tmp/dense --output=/tmp/dense_ct2 --format=ctranslate2
lingvo-moe-export --logdir=/tmp/nllb --output=/tmp/nllb_again --format=huggingface
lingvo-moe-export --logdir=/tmp/tiny --output=/tmp/tiny_hlo --format=stablehlo --batch_size=8
lingvo-moe-export --model=tiny.MoE --output=/tmp/tiny_step --format=stablehlo    # untrained
"""

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path

from absl import flags

from lingvo_moe import api
from lingvo_moe.core.params import override
from lingvo_moe.core.registry import get_params
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving.format import Format, directory_size
from lingvo_moe.serving.prune import CHOICES, STATISTICS, Pruning
from lingvo_moe.serving.report import check_comparable, compare, compare_sizes
from lingvo_moe.serving.saved_model import SavedModel
from lingvo_moe.serving.storage import STORAGES, Storage
from lingvo_moe.serving.tf_serving import TFServing
from lingvo_moe.serving.to_ctranslate2 import CTranslate2
from lingvo_moe.serving.to_hugging_face import HuggingFace
from lingvo_moe.serving.weights import Safetensors
from lingvo_moe.tasks.evaluation import load_translator
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tools import common

FLAGS = flags.FLAGS
_STABLEHLO, _CTRANSLATE2 = "stablehlo", "ctranslate2"


_FORMATS: dict[str, Callable[[Storage], Format]] = {
    "saved_model": SavedModel,
    "safetensors": Safetensors,
    "tf_serving": TFServing,
    _CTRANSLATE2: lambda storage: CTranslate2(storage, tuple(FLAGS.languages)),
    "huggingface": HuggingFace,
}


def main(argv: list[str]) -> None:
    """Flags to an export."""
    del argv
    if FLAGS.format == _STABLEHLO:
        if FLAGS.prune is not None or FLAGS.report_data or FLAGS.dtype != "float32":
            raise ValueError(
                "--dtype, --prune and --report_data are not for --format=stablehlo; drop them."
            )
        _export_stablehlo(Path(FLAGS.output))
        return
    chosen, pruning = _FORMATS[FLAGS.format](STORAGES[FLAGS.dtype]), _pruning()
    model_dir, output = _model_dir(), Path(FLAGS.output)
    dataset = Dataset.load(Path(FLAGS.report_data)) if FLAGS.report_data else None
    pairs = check_comparable(model_dir, dataset, FLAGS.report_split) if dataset else []
    if pairs and pruning:
        pairs = [pair for pair in pairs if pair in pruning.pairs(model_dir)]
    options = {"step": FLAGS.step, "overwrite": FLAGS.overwrite, "pruning": pruning}
    step = api.export(model_dir, output, chosen, **options)
    hint = chosen.hint.format(output=output, languages=_language_flags(model_dir))
    size = directory_size(output) / 1e6
    common.report(f"Exported step {step} to {output}, {size:,.1f} MB. Try: {hint}")
    if dataset:
        translator, _ = load_translator(model_dir, Local(model_dir.task), step)
        exported = chosen.open(output)
        table = compare(translator, exported, dataset, FLAGS.report_split, pairs, common.report)
        print(table.to_text())
        if chosen.storage.widens or pruning:
            print(compare_sizes(chosen, model_dir, output, step))


def _language_flags(model_dir: ModelDir) -> str:
    """For a model that must know the source language: flags of two of its languages."""
    if not model_dir.task.needs_source_language:
        return ""
    source, target = model_dir.some_languages
    return f" --source_language={source} --to={target}"


def _pruning() -> Pruning | None:
    if FLAGS.prune is None:
        if FLAGS.languages and FLAGS.format != _CTRANSLATE2:
            raise ValueError(
                "--languages selects the languages of pruned exports: give --prune=0.75, the "
                "share of experts to remove, or drop it."
            )
        return None
    return Pruning(
        share=FLAGS.prune,
        languages=tuple(FLAGS.languages),
        statistics=STATISTICS[FLAGS.prune_statistics],
        choice=dataclasses.replace(CHOICES[FLAGS.prune_by], ratio=FLAGS.prune_ratio),
    )


def _export_stablehlo(output: Path) -> None:
    if importlib.util.find_spec("jax") is None:
        raise ValueError(
            "--format=stablehlo needs JAX, which is not installed: pip install 'lingvo_moe[spmd]'."
        )
    import jax

    jax.config.update("jax_platforms", "cpu")  # lowering needs no device and must not reserve one
    from lingvo_moe.serving import stablehlo

    run = f"python {output}/run.py"
    if FLAGS.logdir is None:
        if FLAGS.model is None:
            raise ValueError("Give --logdir, or --model for a training step without a checkpoint.")
        if stablehlo.TRANSLATE in (FLAGS.programs or ()):
            raise ValueError(
                "--programs=translate needs --logdir, the directory of a trained model."
            )
        params = override(get_params(FLAGS.model), FLAGS.set)
        stablehlo.export_untrained(FLAGS.model, params, output, FLAGS.overwrite)
        common.report(f"Exported {FLAGS.model}, untrained, to {output}. Try: {run} --steps=10")
        return
    step = stablehlo.export_trained(
        _model_dir(),
        output,
        FLAGS.programs or (),
        FLAGS.step,
        FLAGS.batch_size,
        FLAGS.source_length,
        FLAGS.overwrite,
    )
    tries = {stablehlo.TRAIN: f"{run} --steps=10", stablehlo.TRANSLATE: f"{run} < sentences"}
    made = [name for name in tries if (output / f"{name}.stablehlo").exists()]
    commands = " or ".join(tries[name] for name in made)
    common.report(f"Exported step {step} to {output}. Try: {commands}")


def _model_dir() -> ModelDir:
    if FLAGS.logdir is None:
        raise ValueError(
            f"--format={FLAGS.format} needs --logdir, the directory of a trained model."
        )
    return ModelDir.open(Path(FLAGS.logdir), FLAGS.model).with_overrides(FLAGS.set)


def run() -> None:
    """The console script."""
    flags.DEFINE_string("logdir", None, "Directory of a trained model.")
    flags.DEFINE_string("output", None, "Directory to write the export to.", required=True)
    flags.DEFINE_bool("overwrite", False, "Replace an earlier export in --output.")
    flags.DEFINE_string(
        "model", None, "Check that the logdir is of this model; without a logdir, export it."
    )
    flags.DEFINE_integer("step", None, "Step of the checkpoint; by default the best on dev.")
    flags.DEFINE_enum(
        "format",
        "saved_model",
        [*_FORMATS, _STABLEHLO],
        "saved_model: for TensorFlow; safetensors: only weights, for --logdir of all tools; "
        "huggingface: for transformers, if the model was imported; stablehlo: for JAX.",
    )
    flags.DEFINE_enum(
        "dtype",
        "float32",
        list(STORAGES),
        "Format of weights in the file: bfloat16 is half the size, int8 a quarter.",
    )
    flags.DEFINE_float(
        "prune", None, "Remove this share of the experts, those with least importance on dev."
    )
    flags.DEFINE_list(
        "languages",
        [],
        "With --prune: languages (de: all pairs that have it) or pairs (de-en) of the "
        "export; by default all. With --format=ctranslate2: the task whose experts to export, "
        "for a router by task.",
    )
    flags.DEFINE_enum(
        "prune_by",
        "layer",
        list(CHOICES),
        "Remove the same share in every layer, or use one threshold for all layers.",
    )
    flags.DEFINE_enum(
        "prune_statistics",
        "pair",
        list(STATISTICS),
        "Whose tokens on dev decide. pair: those of the exported pairs; language: for the encoder "
        "all pairs of the source language, for the decoder all of the target language; all: all "
        "pairs of the model.",
    )
    flags.DEFINE_float(
        "prune_ratio",
        None,
        "Experts that an encoder layer keeps for each of a decoder layer; by default no ratio.",
    )
    flags.DEFINE_string(
        "report_data",
        None,
        "Prepared data: translate it with the model and with the export; compare BLEU and size.",
    )
    flags.DEFINE_enum(
        "report_split", "test", ["dev", "test"], "Which lines of --report_data to translate."
    )
    flags.DEFINE_multi_enum(
        "programs",
        None,
        ["train", "translate"],
        "StableHLO programs to write; by default all that the model has.",
    )
    flags.DEFINE_integer(
        "batch_size", 16, "Sentences that the StableHLO program translates at once.", lower_bound=1
    )
    flags.DEFINE_integer(
        "source_length",
        None,
        "Tokens of the longest sentence that the StableHLO program translates, with language tag "
        "and EOS; by default as in lingvo-moe-translate.",
        lower_bound=3,
    )
    flags.DEFINE_multi_string("set", [], common.SET_HELP)
    common.run(main)


if __name__ == "__main__":
    run()
