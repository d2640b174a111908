"""Exports a trained model as a SavedModel that takes strings and returns strings.

lingvo-moe-export --logdir=/tmp/tiny --output=/tmp/tiny_export
"""

from pathlib import Path

from absl import flags

from lingvo_moe.serving.export import export_saved_model
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tools import common

FLAGS = flags.FLAGS


def main(argv: list[str]) -> None:
    """Flags to export_saved_model."""
    del argv
    model_dir = ModelDir.open(Path(FLAGS.logdir), FLAGS.model).with_overrides(FLAGS.set)
    step = export_saved_model(model_dir, Path(FLAGS.output), FLAGS.step)
    common.report(
        f"Exported step {step} to {FLAGS.output}. Try: "
        f"python {FLAGS.output}/translate.py 'a sentence'"
    )


def run() -> None:
    """The console script."""
    flags.DEFINE_string("logdir", None, "Directory of a trained model.", required=True)
    flags.DEFINE_string("output", None, "Where the SavedModel goes.", required=True)
    flags.DEFINE_string("model", None, "Check that the logdir is of this model.")
    flags.DEFINE_integer("step", None, "Which checkpoint; by default the best on dev.")
    flags.DEFINE_multi_string("set", [], common.SET_HELP)
    common.run(main)


if __name__ == "__main__":
    run()
