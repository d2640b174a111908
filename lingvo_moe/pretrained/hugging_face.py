"""Logdirs made of checkpoints of Hugging Face's M2M-100 and NLLB models.

Sources: Fan et al. 2020, Beyond English-Centric Multilingual Machine Translation, arXiv 2010.11125;
NLLB Team 2022, No Language Left Behind, arXiv 2207.04672.

Weights go from file to file, so that memory is that of one tensor.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from lingvo_moe.config.fields import short_repr
from lingvo_moe.decoding.fitted import Fitted
from lingvo_moe.pretrained import config as configs
from lingvo_moe.pretrained import tensors, tokenizer
from lingvo_moe.pretrained.names import EMBEDDING, Origin, origins
from lingvo_moe.system.files import check_output, new_directory, read_json
from lingvo_moe.system.safetensors import InParts
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.model_weights import save_weights
from lingvo_moe.tasks.translation import TranslationTask

MAKER = "lingvo-moe-import"
ORIGINAL = "huggingface"  # where a logdir keeps the files that it was imported with
_ALIASES = (
    EMBEDDING,
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "lm_head.weight",
)
_IGNORED = ("embed_positions.weights", ".version", "_float_tensor", "final_logits_bias")
# Translations into some languages have 2.5 times as many tokens as their English sources.
_LENGTH_RATIO = 4.0
_ROWS = 4096  # of embeddings that are compared at a time

_Read = Callable[[str], np.ndarray]


def import_model(source: Path, output: Path, overwrite: bool = False) -> ModelDir:
    """Makes a logdir, with a checkpoint of step 0, of a directory with config.json, .safetensors
    files and the tokenizer's files. Everything is checked before anything is written.

    Raises ValueError: something is missing, damaged or not as the model's config says; or something
    else than an earlier import lies at output; OSError: a file cannot be read or written.
    """
    check_output(output, MAKER, overwrite)
    config = read_json(source / configs.FILE)
    params = configs.to_params(config, str(source / configs.FILE))
    of_weights = origins(TranslationTask(params), configs.is_moe(config))
    read = _reader(source, of_weights)
    vocabulary = tokenizer.read_vocabulary(source, params.source_vocab_size)
    with new_directory(output, MAKER, overwrite) as directory:
        ModelDir(
            directory,
            source.resolve().name,
            params,
            (),
            vocabulary.tags,
            dict.fromkeys(("source", "target"), vocabulary),
            None,
            fitted=Fitted(ratios=dict.fromkeys(vocabulary.tags, _LENGTH_RATIO)),
        ).save()
        weights = {path: _weight(origin, read, source) for path, origin in of_weights.items()}
        save_weights(directory, weights, 0)
        (directory / ORIGINAL).mkdir()
        for name in (configs.FILE, *tokenizer.FILES):
            if (source / name).exists():
                shutil.copyfile(source / name, directory / ORIGINAL / name)
    return ModelDir.open(output)


def _reader(source: Path, of_weights: Mapping[str, Origin]) -> _Read:
    """A function name -> tensor, after a check of all tensors of a checkpoint. Raises
    ValueError: a tensor that a weight needs is missing or has another shape or kind of dtype,
    one is unknown, or copies of the embedding differ."""
    files = tensors.open_tensors(source)
    names = {name.removeprefix(tensors.PREFIX): name for name in files}
    wanted = {name: origin.shape for origin in of_weights.values() for name in origin.names}
    aliases = [name for name in _ALIASES if name in names]
    if aliases:
        names[EMBEDDING] = names[aliases[0]]
    known = {n for n in names if n not in _ALIASES[1:] and not n.endswith(_IGNORED)}
    if differ := sorted(wanted.keys() ^ known):
        have = "has a" if differ[0] in known else "has no"
        raise ValueError(
            f"{source} {have} tensor {short_repr(differ[0])}, but {configs.FILE} says otherwise, "
            f"of {len(differ)} in all; take all files from one model."
        )

    def read(name):
        return files[names[name]][names[name]]

    for name, shape in wanted.items():
        tensor = read(name)
        if tensor.shape != shape or tensor.dtype.kind in "iub":
            raise ValueError(
                f"{source}: the tensor {name} is {tensor.dtype} {list(tensor.shape)}; with this "
                f"{configs.FILE} it must be of floats {list(shape)}."
            )
    for alias in aliases[1:]:
        if not _equal(read(alias), read(EMBEDDING)):
            raise ValueError(
                f"{source}: {names[alias]} differs from {names[EMBEDDING]}; lingvo_moe "
                f"imports only models in which both sides and the softmax share one embedding."
            )
    return read


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and all(
        np.array_equal(one[i : i + _ROWS], other[i : i + _ROWS])
        for i in range(0, len(other), _ROWS)
    )


def _weight(origin: Origin, read: _Read, source: Path) -> InParts:
    """A weight to be written, of the dtype of its tensors; float32 if they differ."""

    def parts():
        for name in origin.names:
            tensor = read(name)
            if not np.isfinite(tensor).all():
                raise ValueError(
                    f"{source}: the tensor {name} has values that are not finite; get it again."
                )
            for part in origin.turn(tensor):
                yield part.astype(dtype, copy=False)

    dtypes = {read(name).dtype for name in origin.names}
    dtype = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float32)
    return InParts(origin.spec.shape, dtype, parts)
