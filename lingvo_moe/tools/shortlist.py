r"""Makes a model's shortlist: which target pieces occur with which source pieces.

lingvo-moe-shortlist --logdir=models/moe --data=data
lingvo-moe-translate --logdir=models/moe --to=en --set=decoding.shortlist=True 'ein Satz'
"""

from pathlib import Path

from absl import flags

from lingvo_moe.data.dataset import Dataset
from lingvo_moe.inference.shortlist import make_shortlist, save_shortlist
from lingvo_moe.system.files import check_file
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tools import common
from lingvo_moe.tools.common import Flag

FLAGS = flags.FLAGS
TABLE = (
    Flag("logdir", str, None, "Directory of a trained model.", required=True),
    Flag("data", str, None, "The dataset that it was trained on.", required=True),
    Flag("candidates", int, 50, "Target pieces for each source piece.", least=1),
    Flag("frequent", int, 200, "Most frequent target pieces of each language.", least=1),
    Flag("sentences", int, 2000000,
         "Largest number of sentence pairs to count, divided equally among the language pairs; "
         "at least one sentence pair of each language pair is counted.", least=1),
)  # fmt: skip


@common.tool(TABLE)
def main() -> None:
    """Flags to make_shortlist."""
    model_dir, dataset = ModelDir.open(Path(FLAGS.logdir)), Dataset.load(Path(FLAGS.data))
    check_file(model_dir.shortlist_path)
    numbers = FLAGS.candidates, FLAGS.frequent, FLAGS.sentences
    shortlist = make_shortlist(model_dir, dataset, *numbers, common.report)
    print(save_shortlist(model_dir, shortlist))


if __name__ == "__main__":
    main()
