r"""Exports a trained model: SavedModel, CTranslate2, Hugging Face or weights.

lingvo-moe-export --logdir=/tmp/tiny --output=/tmp/tiny_export
lingvo-moe-export --logdir=/tmp/tiny --output=/tmp/tiny_int8 --dtype=int8 --report_data=/tmp/data
lingvo-moe-export --logdir=/tmp/tiny --output=/tmp/tiny_weights --format=safetensors
lingvo-moe-export --logdir=/tmp/dense --output=/tmp/dense_ct2 --format=ctranslate2
lingvo-moe-export --logdir=/tmp/nllb --output=/tmp/nllb_again --format=huggingface
"""

import dataclasses
import os
from pathlib import Path

from lingvo_moe import api
from lingvo_moe.config.params import classes, parse_policy
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.jobs.model import Model
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving.formats.base import Format, directory_size
from lingvo_moe.serving.formats.storage import FLOAT32, STORAGES
from lingvo_moe.serving.prune import Pruning
from lingvo_moe.serving.report import compare
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tools import common
from lingvo_moe.tools.common import FLAGS, NAMES, Flag

TABLE = (
    Flag("logdir", str, None, "Directory of a trained model.", required=True),
    Flag("output", str, None, "Directory to write the export to.", required=True),
    common.OVERWRITE,
    common.CHECKED_MODEL,
    common.STEP,
    Flag("format", str, "saved_model",
         "A class of lingvo_moe.serving.formats or of --import, with its fields: "
         "\"SavedModel(storage=Int8())\". SavedModel: for TensorFlow; Safetensors: only weights, "
         "for --init_from and for --logdir of all tools but lingvo-moe-train; CTranslate2; "
         "HuggingFace: for transformers, if the model was imported. Short: saved_model, "
         "ctranslate2 and so on."),
    Flag("dtype", tuple(STORAGES), None,
         "Type of weights in the file, by default float32: bfloat16 is half the size, int8 a "
         "quarter."),
    Flag("prune", float, None,
         "Remove this share of the experts, those with least importance on dev."),
    Flag("languages", NAMES, None,
         "With --prune: languages (de: all pairs that have it) or pairs (de-en) of the export; "
         "by default all."),
    Flag("report_data", str, None,
         "Prepared data: translate it with the model and with the export; compare BLEU."),
    Flag("report_split", ("dev", "test"), "test", "Which lines of --report_data to translate."),
    common.SET,
)  # fmt: skip


@common.tool(TABLE)
def main() -> None:
    """Flags to an export."""
    # An export computes nothing on devices, so JAX must not reserve a GPU's memory.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    common.check_effect("with --prune", FLAGS.prune is not None, "languages")
    common.check_effect("with --report_data", bool(FLAGS.report_data), "report_split")
    chosen, pruning, output = _format(), _pruning(), Path(FLAGS.output)
    if FLAGS.report_data and not chosen.can_be_read:
        raise ValueError(
            f"--report_data translates with the export, and --format={FLAGS.format} cannot be read "
            f"back; drop --report_data, or pass --format=saved_model or safetensors."
        )
    model_dir = ModelDir.open(Path(FLAGS.logdir), FLAGS.model).with_overrides(FLAGS.set)
    dataset = Dataset.load(Path(FLAGS.report_data)) if FLAGS.report_data else None
    options = {"step": FLAGS.step, "overwrite": FLAGS.overwrite, "pruning": pruning}
    step = api.export(model_dir, output, chosen, **options)
    hint = chosen.hint(output, pruning.narrow(model_dir) if pruning else model_dir)
    size = directory_size(output) / 1e6
    common.report(f"Exported step {step} to {output}, {size:,.1f} MB. Try: {hint}")
    if dataset:
        trained, exported = Model(model_dir, Local, step), api.load(output)
        print(compare(trained, exported, dataset, FLAGS.report_split, common.report))


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
    return Pruning(share=FLAGS.prune, languages=tuple(FLAGS.languages))


if __name__ == "__main__":
    main()
