r"""Makes a model's shortlist: which target pieces occur with which source pieces.

lingvo-moe-shortlist --logdir=models/moe --data=data
lingvo-moe-translate --logdir=models/moe --to=en --set=decoding.shortlist=True 'ein Satz'
"""

from pathlib import Path

from absl import flags

from lingvo_moe.core.files import check_file
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.shortlist import make_shortlist, save_shortlist
from lingvo_moe.tools import common

FLAGS = flags.FLAGS


def main() -> None:
    """Flags to make_shortlist."""
    model_dir, dataset = ModelDir.open(Path(FLAGS.logdir)), Dataset.load(Path(FLAGS.data))
    check_file(model_dir.shortlist_path)
    numbers = FLAGS.candidates, FLAGS.frequent, FLAGS.sentences
    shortlist = make_shortlist(model_dir, dataset, *numbers, common.report)
    print(save_shortlist(model_dir, shortlist))


def run() -> None:
    """The console script."""
    flags.DEFINE_string("logdir", None, "Directory of a trained model.", required=True)
    flags.DEFINE_string("data", None, "The dataset that it was trained on.", required=True)
    flags.DEFINE_integer("candidates", 50, "Target pieces for each source piece.", 1)
    flags.DEFINE_integer("frequent", 200, "Most frequent target pieces of each language.", 1)
    flags.DEFINE_integer(
        "sentences",
        2_000_000,
        "Largest number of sentence pairs to count, divided equally among the language pairs; at "
        "least one sentence pair of each language pair is counted.",
        1,
    )
    common.run(main)


if __name__ == "__main__":
    run()
