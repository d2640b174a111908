"""Peer: an imported model.  python benchmarks/_peers/decode_imported.py RUNTIME DIRECTORY

RUNTIME is local or xla. The directory is what decode_hugging_face.py wrote.
"""

import functools
import sys
import tempfile
from pathlib import Path

import numpy as np
from _serve import STEPS, fingerprint, serve, sources

import lingvo_moe as lm
from lingvo_moe.data.vocabulary import EOS
from lingvo_moe.pretrained.hugging_face import import_model
from lingvo_moe.runtimes.local import Local
from lingvo_moe.runtimes.xla import Xla

PIECES = 100
_LANGUAGES = ("eng_Latn", "fra_Latn")


def main() -> None:
    """Answers requests on standard input; see _serve."""
    with tempfile.TemporaryDirectory() as directory:
        model_dir = import_model(Path(sys.argv[2]), Path(directory) / "logdir")
        make = {"local": Local, "xla": Xla}[sys.argv[1]]
        model = lm.load(model_dir.path, make_runtime=make)
    prefix = model_dir.prefix(*_LANGUAGES)

    @functools.cache
    def translator(beam):
        return model.translator(
            beam_size=beam, min_length=STEPS, length_ratio=0.0, length_offset=STEPS
        )

    def step(batch=1, beam=1):
        one = translator(beam)
        pieces = 4 + sources(batch)[:, :-1] % PIECES
        ids = np.concatenate(
            [np.tile(prefix, (batch, 1)), pieces, np.full((batch, 1), EOS)], axis=1
        ).astype(np.int32)
        lengths = np.full([batch], ids.shape[1], np.int32)
        output = one.translate_ids(ids, lengths, np.zeros_like(lengths), one.request)
        return fingerprint(np.asarray(output.ids)[:, 0])

    serve(step, "an imported model")


if __name__ == "__main__":
    main()
