"""Export for TensorFlow Serving: a model version with warm-up requests, and a client."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from lingvo_moe.serving import client
from lingvo_moe.serving.formats.saved_model import (
    TRANSLATE,
    WITH_OPTIONS,
    SavedModel,
    default_options,
)
from lingvo_moe.tasks.translator import part_pieces

VERSION = "1"
WARM_UP = Path("assets.extra") / "tf_serving_warmup_requests"
ABOUT = "about.json"
_BATCHES = (1, 8, 32)  # sentences of the warm-up requests

# Numbers of fields in tensorflow_serving/apis: prediction_log.proto, predict.proto, model.proto.
_PREDICT_LOG, _REQUEST = 6, 1
_MODEL_SPEC, _INPUTS = 1, 2
_SIGNATURE_NAME = 3
_KEY, _VALUE = 1, 2  # of an entry of a map


@dataclasses.dataclass(frozen=True)
class TFServing(SavedModel):
    """A SavedModel with warm-up requests, OUTPUT/1, and a REST client, OUTPUT/translate.py.

    OUTPUT/about.json has what the client knows of the model, also the defaults of its options.
    """

    client = "client_tf_serving.py"

    def write(self, model_dir, theta, step, directory):
        """Writes the SavedModel, the warm-up requests and what the client knows."""
        version = directory / VERSION
        super().write(model_dir, theta, step, version)
        options = default_options(model_dir.params)
        about = {
            "options": client.plain(options),
            "part_pieces": part_pieces(model_dir.params),
            "pairs": model_dir.translated_pairs,
            "forms": model_dir.forms,
            "penalties": {
                name: model_dir.fitted.numbers(name)["length_penalty"] for name in model_dir.tags
            },
        }
        text = json.dumps(about, ensure_ascii=False, indent=1)
        (directory / ABOUT).write_text(text + "\n", encoding="utf-8")
        (version / WARM_UP).parent.mkdir()
        with tf.io.TFRecordWriter(str(version / WARM_UP)) as writer:
            for inputs in _warm_up_inputs(model_dir):
                writer.write(prediction_log(inputs))
                if options:
                    writer.write(prediction_log(inputs | options, WITH_OPTIONS))

    def hint(self, output, model_dir=None):
        """Asks a server."""
        return f"{super().hint(output, model_dir)} --url=URL"

    def open(self, path):
        """Loads the SavedModel."""
        return super().open(path / VERSION)


def prediction_log(inputs: Mapping[str, Any], signature: str = TRANSLATE) -> bytes:
    """A serialized PredictionLog of a PredictRequest, as of the package tensorflow-serving-api.

    Args:
        inputs: of the signature, tensors or Python values.
        signature: its name.
    """
    request = _field(_MODEL_SPEC, _field(_SIGNATURE_NAME, signature.encode()))
    for name, value in inputs.items():
        tensor = tf.convert_to_tensor(value)
        proto = tf.make_tensor_proto(tensor.numpy(), tensor.dtype, tensor.shape)
        entry = _field(_KEY, name.encode()) + _field(_VALUE, proto.SerializeToString())
        request += _field(_INPUTS, entry)
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
