"""Peer: this package decodes.

python benchmarks/_peers/decode_ours.py RUNTIME WEIGHTS [PATH=VALUE ...]

The model has the shape in _serve.py and random weights, which are written to the file WEIGHTS
(.npz) unless it is "-". RUNTIME is local or xla; overrides as in --set.
"""

import functools
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from _serve import STEPS, fingerprint, serve, sources
from ours import MODEL

import lingvo_moe.tools  # noqa: F401  (TensorFlow logs less when it starts)
from lingvo_moe.config import registry
from lingvo_moe.config.params import override
from lingvo_moe.runtimes.local import Local
from lingvo_moe.runtimes.xla import Xla
from lingvo_moe.system import npz
from lingvo_moe.tasks.translation import TranslationTask

# With this length penalty a longer translation could always be better, so all STEPS steps are run.
_SEARCH = (
    "decoding.length_ratio=0",
    f"decoding.length_offset={STEPS}",
    "decoding.length_penalty=5",
)


def main() -> None:
    """Answers requests on standard input; see _serve."""
    name, path, *overrides = sys.argv[1:]
    make = {"local": Local, "xla": Xla}[name]
    params = override(registry.get_params("tiny.MoE"), [*MODEL, *_SEARCH, *overrides])
    runtimes: dict[int, Local] = {}
    state = _runtime(make, params, 1).state()
    if path != "-":
        npz.save(Path(path), compress=False, **{n: np.asarray(v) for n, v in state.items()})

    @functools.cache
    def runtime(beam):
        runtimes[beam] = _runtime(make, params, beam)
        runtimes[beam].restore(state)
        return runtimes[beam]

    def step(batch=1, beam=1):
        ids = sources(batch)
        output = runtime(beam).translate(ids, np.full([batch], ids.shape[1], np.int32))
        return fingerprint(np.asarray(output.ids)[:, 0])

    serve(step, f"TensorFlow {tf.__version__}, {name}; {' '.join(overrides)}")


def _runtime(make, params, beam):
    runtime = make(TranslationTask(override(params, [f"decoding.beam_size={beam}"])))
    runtime.initialize(0)
    return runtime


if __name__ == "__main__":
    main()
