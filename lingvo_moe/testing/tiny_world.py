"""A dataset and params so small that a training step takes milliseconds."""

import functools
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
    output = Path(tempfile.mkdtemp(prefix="lingvo_moe_")) / "data"
    return prepare(CORPUS, output, PrepareParams(source_vocab_size=400, target_vocab_size=300))
