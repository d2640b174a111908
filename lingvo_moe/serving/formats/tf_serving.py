"""Export for TensorFlow Serving: a model version, and a client."""

import dataclasses
import json

from lingvo_moe.serving import client
from lingvo_moe.serving.formats.base import about_of
from lingvo_moe.serving.formats.saved_model import SavedModel

VERSION = "1"


@dataclasses.dataclass(frozen=True)
class TFServing(SavedModel):
    """A SavedModel, OUTPUT/1, and a REST client, OUTPUT/translate.py.

    OUTPUT/lingvo_moe.json has what the client knows of the model.
    """

    def write(self, model_dir, theta, step, directory):
        """Writes the SavedModel and what the client knows."""
        super().write(model_dir, theta, step, directory / VERSION)
        needed = ["source_language"] if model_dir.task.needs_source_language else []
        about = about_of(model_dir) | {"wanted": ["target_language", *needed]}
        text = json.dumps(about, ensure_ascii=False, indent=1)
        (directory / client.ABOUT).write_text(text + "\n", encoding="utf-8")

    def hint(self, output, model_dir):
        """Asks a server."""
        return f"{super().hint(output, model_dir)} --url=URL"
