"""Export for TensorFlow Serving: a model version with warm-up requests, and a client."""

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from lingvo_moe.core.console import quiet
from lingvo_moe.serving.client import check_path
from lingvo_moe.serving.directory import new_export
from lingvo_moe.serving.export import ServedModel, read_model
from lingvo_moe.serving.prune import Pruning
from lingvo_moe.serving.storage import FLOAT32, Storage
from lingvo_moe.tasks.model_dir import ModelDir

VERSION = "1"
WARM_UP = Path("assets.extra") / "tf_serving_warmup_requests"
_SIGNATURE = "serving_default"
_BATCHES = (1, 8, 32)  # sentences of the warm-up requests

# Numbers of fields in tensorflow_serving/apis: prediction_log.proto, predict.proto, model.proto.
_PREDICT_LOG, _REQUEST = 6, 1
_MODEL_SPEC, _INPUTS = 1, 2
_SIGNATURE_NAME = 3
_KEY, _VALUE = 1, 2  # of an entry of a map


def export_tf_serving(
    model_dir: ModelDir,
    output: Path,
    step: int | None = None,
    overwrite: bool = False,
    storage: Storage = FLOAT32,
    pruning: Pruning | None = None,
) -> int:
    """Writes OUTPUT/1, a SavedModel with warm-up requests, and OUTPUT/translate.py, a REST client.

    Args:
        model_dir, output, step, overwrite, storage, pruning: as for `export_saved_model`.

    Returns:
        The step exported.

    Raises:
        ValueError, OSError: as `export_saved_model`.
    """
    check_path(output.absolute())
    with new_export(output, "client_tf_serving.py", "translate.py", overwrite) as directory:
        model_dir, theta, step = read_model(model_dir, step, pruning)
        with quiet():  # SentencePiece logs its normalization
            module = ServedModel(model_dir, theta, storage)
        version = directory / VERSION
        tf.saved_model.save(module, str(version), signatures=module.translate)
        (version / WARM_UP).parent.mkdir()
        with tf.io.TFRecordWriter(str(version / WARM_UP)) as writer:
            for inputs in _warm_up_inputs(model_dir):
                writer.write(prediction_log(inputs))
    return step


def prediction_log(inputs: Mapping[str, tf.Tensor]) -> bytes:
    """A serialized PredictionLog of a PredictRequest, as of the package tensorflow-serving-api."""
    request = _field(_MODEL_SPEC, _field(_SIGNATURE_NAME, _SIGNATURE.encode()))
    for name, value in inputs.items():
        tensor = tf.make_tensor_proto(value).SerializeToString()
        request += _field(_INPUTS, _field(_KEY, name.encode()) + _field(_VALUE, tensor))
    return _field(_PREDICT_LOG, _field(_REQUEST, request))


def _warm_up_inputs(model_dir):
    """Requests of several sizes, in the first pair's languages."""
    source, target = model_dir.some_languages
    languages = {"target_language": target}
    if model_dir.task.needs_source_language:
        languages["source_language"] = source
    return [{"sentences": ["a b c d e f g h"] * batch, **languages} for batch in _BATCHES]


def _field(number, content):
    """A field of bytes, a text or a message in Protocol Buffers' wire format."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number):
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])
