"""Makes a logdir of an M2M-100 or NLLB-200 model in the format of Hugging Face.

lingvo-moe-import --from=nllb-200-distilled-600M --output=/tmp/nllb
lingvo-moe-translate --logdir=/tmp/nllb --source_language=eng_Latn --to=fra_Latn 'a sentence'
"""

import shlex
from pathlib import Path

from lingvo_moe.nn.layer import count_weights
from lingvo_moe.pretrained.hugging_face import import_model
from lingvo_moe.tools import common
from lingvo_moe.tools.common import FLAGS, Flag

TABLE = (
    Flag("from", str, None,
         "Directory with config.json, .safetensors files and the files of the tokenizer.",
         required=True),
    Flag("output", str, None, "Logdir to make.", required=True),
    common.OVERWRITE,
)  # fmt: skip


@common.tool(TABLE)
def main() -> None:
    """Flags to import_model."""
    logdir = import_model(Path(str(FLAGS["from"].value)), Path(FLAGS.output), FLAGS.overwrite)
    source, target = logdir.some_languages
    count = count_weights(logdir.task.weights())
    common.report(
        f"Imported {count:,} weights and {len(logdir.tags)} languages to {FLAGS.output}. Try: "
        f"lingvo-moe-translate --logdir={shlex.quote(FLAGS.output)} "
        f"--source_language={source} --to={target} 'a sentence'"
    )


if __name__ == "__main__":
    main()
