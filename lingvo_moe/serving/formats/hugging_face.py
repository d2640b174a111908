"""Export of an imported model to the format that it came in, Hugging Face's."""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np

from lingvo_moe.pretrained import config as configs
from lingvo_moe.pretrained import tensors, tokenizer
from lingvo_moe.pretrained.hugging_face import ORIGINAL
from lingvo_moe.pretrained.names import Origin, origins
from lingvo_moe.serving.formats.base import Format
from lingvo_moe.serving.formats.storage import Storage
from lingvo_moe.serving.prune import unrolled
from lingvo_moe.system import safetensors
from lingvo_moe.system.files import read_json
from lingvo_moe.system.safetensors import InParts
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.param_changes import function_changes
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.translation import TranslationTask

# Params of the model without effect on its weights in this format.
_OTHERS = ("model.scan", "model.moe.decoder_num_experts")


@dataclasses.dataclass(frozen=True)
class HuggingFace(Format):
    """A checkpoint that transformers reads: config.json, safetensors, tokenizer files.

    The model must have been imported, and its vocabulary and shapes must not have changed since.
    Fitted length penalties are not written: the format has another formula.
    With storage float32, weights that were not trained after the import keep the imported types.
    """

    def check(self, model_dir):
        """Checks that the model was imported, and that the storage is float32 or bfloat16."""
        _config(model_dir)
        if self.storage.name not in ("float32", "bfloat16"):
            raise ValueError(
                f"--format=huggingface cannot store {self.storage.name}; pass --dtype=bfloat16, "
                f"or --format=saved_model."
            )

    def write(self, model_dir, theta, step, directory):
        """Writes config.json, the weights and the tokenizer files."""
        config = _config(model_dir)
        model_dir, theta = unrolled(model_dir, theta)
        weights = {path: np.asarray(weight) for path, weight in theta.flatten()}
        task = TranslationTask(configs.to_params(config))
        # The model without a head, such as M2M100Model, has names without prefix.
        headless = str(next(iter(config.get("architectures") or ()), "")).endswith("Model")
        prefix = "" if headless else tensors.PREFIX
        types = _types(model_dir, self.storage)
        written = {
            prefix + name: tensor
            for path, origin in origins(task, configs.is_moe(config)).items()
            for name, tensor in _tensors(
                origin, weights[path], types.get(path, weights[path].dtype)
            )
        }
        tensors.write(directory, written)
        text = json.dumps(config, indent=2) + "\n"
        (directory / configs.FILE).write_text(text, encoding="utf-8")
        for name in tokenizer.FILES:
            if (model_dir.path / ORIGINAL / name).exists():
                shutil.copyfile(model_dir.path / ORIGINAL / name, directory / name)


def _config(model_dir: ModelDir) -> dict[str, Any]:
    """The config.json that the model was imported with."""
    original = model_dir.path / ORIGINAL
    if not (original / configs.FILE).exists():
        raise ValueError(
            f"{model_dir.path} has no {ORIGINAL}/{configs.FILE}: --format=huggingface is for "
            f"models of lingvo-moe-import. If this one was trained from the weights of such a "
            f"model, copy the directory {ORIGINAL} of that logdir here."
        )
    size = model_dir.params.source_vocab_size
    if tokenizer.read_vocabulary(original, size) != model_dir.vocabulary("source"):
        raise ValueError(
            f"The vocabulary of {model_dir.path} is not that of the tokenizer in {original}; a "
            f"vocabulary that was extended cannot be exported to this format."
        )
    config = read_json(original / configs.FILE)
    if moe := model_dir.params.model.moe:
        config |= {"num_experts": moe.num_experts, "moe_token_dropout": moe.expert.mask_rate}
    _check_function(model_dir, configs.to_params(config))
    return config


def _check_function(model_dir: ModelDir, imported: TranslationParams) -> None:
    """Raises ValueError if the model computes another function than config.json says."""
    for path, (was, now) in function_changes(imported, model_dir.params).items():
        if path not in _OTHERS:
            raise ValueError(
                f"{model_dir.path}: {path} is {now}, and was {was} in the imported model. The "
                f"format cannot hold this change. Export the model with --format=safetensors."
            )


def _types(model_dir: ModelDir, storage: Storage) -> dict[str, np.dtype]:
    """Path -> the type to write a weight in, where it is not its own."""
    if storage.widens:
        packed = storage.pack_matrix(np.zeros([1, 1], np.float32), -1)
        return {path: packed.values.dtype for path, _ in model_dir.task.weights().flatten()}
    if not model_dir.weights_path.exists():
        return {}
    arrays = safetensors.load(model_dir.weights_path).arrays
    return {path: array.dtype for path, array in arrays.items()}


def _tensors(origin: Origin, weight: np.ndarray, dtype: np.dtype) -> Iterator[tuple[str, InParts]]:
    """The tensors that a weight was made of, by name without prefix."""
    for number, name in enumerate(origin.names):
        part = weight[number] if origin.of_experts else weight

        def parts(part=part):
            return (piece.astype(dtype, copy=False) for piece in origin.turn(part))

        yield name, InParts(origin.shape, dtype, parts)
