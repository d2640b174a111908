"""The tensors of a checkpoint: one .safetensors file, or several with an index."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lingvo_moe.config.fields import check_fields
from lingvo_moe.system import safetensors
from lingvo_moe.system.files import read_json

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PREFIX = "model."  # in front of names of models with a head; those without one lack it
_SHARD_BYTES = 5 * 10**9
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def open_tensors(directory: Path) -> dict[str, Mapping[str, np.ndarray]]:
    """Tensor -> the arrays of its file; each is mapped into memory when it is looked up. Raises
    ValueError: a file is missing, damaged or a pickle, or the index does not agree with the files;
    OSError: a file cannot be read."""
    index = directory / INDEX
    if index.exists():
        return _open_shards(index)
    if (directory / FILE).exists():
        arrays = safetensors.load(directory / FILE).arrays
        return dict.fromkeys(arrays, arrays)
    if pickles := sorted(path for kind in _PICKLES for path in directory.glob(kind)):
        raise ValueError(
            f"{pickles[0]} is a pickle, which can run any code when it is read, so it is not. "
            f"Convert it once where you trust it, with transformers: "
            f"AutoModelForSeq2SeqLM.from_pretrained({str(directory)!r})"
            f".save_pretrained(DIRECTORY, safe_serialization=True)."
        )
    raise ValueError(
        f"{directory} has neither {FILE} nor {INDEX}; give the directory of a Hugging Face model."
    )


def _open_shards(index: Path) -> dict[str, Mapping[str, np.ndarray]]:
    fields = read_json(index)
    check_fields(fields, {"weight_map": dict[str, str]}, str(index))
    file_of = fields["weight_map"]
    opened = {}
    for name in sorted(set(file_of.values())):
        if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise ValueError(
                f"{index} names the file {name!r:.100}, no .safetensors file beside the index."
            )
        opened[name] = safetensors.load(index.parent / name).arrays
    found = {(name, file) for file, arrays in opened.items() for name in arrays}
    if differ := sorted(found - set(file_of.items())):
        name, file = differ[0]
        raise ValueError(
            f"{index} does not list the tensor {name!r:.100} in {file}; get the files again."
        )
    # Converters leave out copies of the embedding, but list them.
    return {name: opened[file] for name, file in file_of.items() if (name, file) in found}


def write(directory: Path, tensors: Mapping[str, safetensors.InParts]) -> None:
    """Writes tensors in one file, or several of 5 GB with an index. Raises OSError: they cannot
    be written."""
    shards: list[dict[str, safetensors.InParts]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if size + tensor.nbytes > _SHARD_BYTES and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    files = [FILE]
    if len(shards) > 1:
        count = len(shards)
        files = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
        total = sum(tensor.nbytes for tensor in tensors.values())
        file_of = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        index = {"metadata": {"total_size": total}, "weight_map": file_of}
        (directory / INDEX).write_text(json.dumps(index, indent=2))
    for file, shard in zip(files, shards, strict=True):
        safetensors.save(directory / file, shard, {"format": "pt"})
