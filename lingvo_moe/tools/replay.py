r"""Repeats the step that ended training, and finds its first operation that is not finite.

lingvo-moe-replay --logdir=models/moe
"""

from pathlib import Path

from absl import flags

from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.replay import replay
from lingvo_moe.tools import common

FLAGS = flags.FLAGS


def main() -> None:
    """Flags to tasks.replay."""
    found = replay(ModelDir.open(Path(FLAGS.logdir)), Local, common.report, FLAGS.step)
    print(found or "All operations are finite on one device.")


def run() -> None:
    """The console script."""
    flags.DEFINE_string("logdir", None, "Logdir of the training that ended.", required=True)
    flags.DEFINE_integer(
        "step", None, "Number of steps before the saved step; by default the newest."
    )
    common.run(main)


if __name__ == "__main__":
    run()
