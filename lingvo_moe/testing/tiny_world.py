"""A dataset and params so small that a training step takes milliseconds."""

import atexit
import dataclasses
import functools
import shutil
import tempfile
from pathlib import Path

from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.prepare import PrepareParams, prepare

CORPUS = Path(__file__).parents[2] / "testdata" / "synthetic"

# `--set` texts that shrink tiny.MoE.
SHRINK = (
    "model.num_encoder_layers=2",
    "model.num_decoder_layers=2",
    "model.model_dim=16",
    "model.hidden_dim=32",
    "model.num_heads=2",
    "model.head_dim=8",
    "source_vocab_size=512",
    "target_vocab_size=512",
    "input.batch_size=4",
)


@functools.cache
def dataset() -> Dataset:
    """The committed sample of the synthetic corpus, prepared; made once a process."""
    directory = Path(tempfile.mkdtemp(prefix="lingvo_moe_"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    sizes = PrepareParams(source_vocab_size=400, target_vocab_size=300)
    return prepare(CORPUS, directory / "data", sizes)


def without(split: str, *names: str, of: Dataset | None = None) -> Dataset:
    """A copy of a dataset in which some pairs have no lines of a split.

    Args:
        split: "train", "dev" or "test".
        *names: the pairs; all if none is given.
        of: the dataset; None for `dataset()`.
    """
    of = of or dataset()
    pairs = (
        dataclasses.replace(
            pair,
            examples=pair.examples | {split: 0},
            shards={name: files for name, files in pair.shards.items() if name != split},
        )
        if not names or pair.name in names
        else pair
        for pair in of.pairs
    )
    return dataclasses.replace(of, pairs=tuple(pairs))
