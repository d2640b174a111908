"""Export for TensorFlow Serving: a model version with warm-up requests, and a client."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from lingvo_moe.serving.saved_model import SavedModel

VERSION = "1"
WARM_UP = Path("assets.extra") / "tf_serving_warmup_requests"
_SIGNATURE = "serving_default"
_BATCHES = (1, 8, 32)  # sentences of the warm-up requests

# Numbers of fields in tensorflow_serving/apis: prediction_log.proto, predict.proto, model.proto.
_PREDICT_LOG, _REQUEST = 6, 1
_MODEL_SPEC, _INPUTS = 1, 2
_SIGNATURE_NAME = 3
_KEY, _VALUE = 1, 2  # of an entry of a map


@dataclasses.dataclass(frozen=True)
class TFServing(SavedModel):
    """A SavedModel with warm-up requests, OUTPUT/1, and a REST client, OUTPUT/translate.py."""

    client = "client_tf_serving.py"
    hint = f"{SavedModel.hint} --url=URL"

    def write(self, model_dir, theta, step, directory):
        """Writes the SavedModel and the warm-up requests."""
        version = directory / VERSION
        super().write(model_dir, theta, step, version)
        (version / WARM_UP).parent.mkdir()
        with tf.io.TFRecordWriter(str(version / WARM_UP)) as writer:
            for inputs in _warm_up_inputs(model_dir):
                writer.write(prediction_log(inputs))

    def open(self, path):
        """Loads the SavedModel."""
        return super().open(path / VERSION)


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
