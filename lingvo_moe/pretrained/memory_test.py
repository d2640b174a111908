"""The memory of an import is that of its largest tensors, whatever the size of the model."""

import functools
import json
import math
import shutil
import tracemalloc

import numpy as np

from lingvo_moe.pretrained import tensors
from lingvo_moe.pretrained.config import to_params
from lingvo_moe.pretrained.hugging_face import import_model
from lingvo_moe.pretrained.names import origins
from lingvo_moe.system.safetensors import InParts
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.hugging_face import FIXTURES


def repeated(row, shape):
    """The parts of an array whose rows are equal."""
    *rows, width = shape
    return (row[:width] for _ in range(math.prod(rows)))


def write_checkpoint(directory, shard_bytes, monkeypatch, **sizes):
    """A sharded NLLB-MoE of these sizes; every tensor repeats a row. Returns the bytes of each."""
    shutil.copytree(FIXTURES / "nllb_moe", directory)
    for old in [*directory.glob("*.safetensors"), directory / tensors.INDEX]:
        old.unlink()
    config = json.loads((directory / "config.json").read_text()) | sizes
    (directory / "config.json").write_text(json.dumps(config))
    row = np.random.default_rng(0).normal(size=2**14).astype(np.float32)
    written = {}
    for origin in origins(TranslationTask(to_params(config)), moe_names=True).values():
        parts = functools.partial(repeated, row, origin.shape)
        for name in origin.names:
            written[name] = InParts(origin.shape, np.dtype(np.float32), parts)
    monkeypatch.setattr(tensors, "_SHARD_BYTES", shard_bytes)
    tensors.write(directory, written)
    return [tensor.nbytes for tensor in written.values()]


def test_fifty_megabytes_in_shards(tmp_path, monkeypatch):
    sizes = {f"{side}_ffn_dim": 8192 for side in ("encoder", "decoder")} | {"d_model": 64}
    found = write_checkpoint(tmp_path / "checkpoint", 2**23, monkeypatch, num_experts=6, **sizes)
    assert sum(found) > 50e6
    tracemalloc.start()
    import_model(tmp_path / "checkpoint", tmp_path / "logdir")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * max(found) + 2**21
