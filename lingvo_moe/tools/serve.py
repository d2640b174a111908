r"""Serves models over HTTP: a JSON interface, and a web page for trying them.

lingvo-moe-serve --model=models/moe
lingvo-moe-serve --model=big=models/moe --model=small=export --host=0.0.0.0 --port=8080

After SIGTERM or Ctrl-C the server answers open requests for at most --drain seconds and ends, with
exit status 0, or 1 if some were left unanswered.
"""

import importlib.util
import logging

from absl import flags

from lingvo_moe.tools import common

FLAGS = flags.FLAGS


def main() -> None:
    """Flags to a server."""
    if importlib.util.find_spec("uvicorn") is None:
        raise ValueError(
            "lingvo-moe-serve needs Starlette and uvicorn, which are not installed: pip install "
            "'lingvo_moe[serve]'."
        )
    from lingvo_moe.server.app import Server, check_queue
    from lingvo_moe.server.batcher import BatchParams
    from lingvo_moe.server.loading import load_all, split_name
    from lingvo_moe.server.model import OptionLimits
    from lingvo_moe.server.requests import Limits
    from lingvo_moe.server.run import bind, serve
    from lingvo_moe.tools.runtimes import RUNTIMES

    limits = Limits(
        max_bytes=FLAGS.max_bytes,
        max_sentences=FLAGS.max_sentences,
        max_characters=FLAGS.max_characters,
        timeout=FLAGS.timeout,
    )
    of_options = OptionLimits(
        n_best=FLAGS.n_best,
        beam_size=FLAGS.beam_size,
        output_tokens=FLAGS.max_output_tokens,
        batch_tokens=FLAGS.max_batch_tokens,
    )
    batching = BatchParams(
        max_tokens=FLAGS.max_batch_tokens,
        max_sentences=FLAGS.max_batch_sentences,
        max_wait=FLAGS.max_wait_ms / 1000,
        max_queue=FLAGS.max_queue,
    )
    check_queue(limits, batching)
    with bind(FLAGS.host, FLAGS.port) as listener:
        exports = [(split_name(text)[1] / "saved_model.pb").exists() for text in FLAGS.model]
        common.check_effect("with a logdir", not all(exports), "set", "runtime")
        # The search is traced once for each set of options, and TensorFlow warns of many traces.
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        runtime = RUNTIMES[FLAGS.runtime]
        models = load_all(FLAGS.model, of_options, FLAGS.set, runtime)
        serve(Server(models, limits, batching), listener, FLAGS.drain, common.report)


def run() -> None:
    """The console script."""
    flags.DEFINE_multi_string(
        "model", None, "NAME=DIR, or DIR: a logdir or an export. May be repeated.", required=True
    )
    flags.DEFINE_enum(
        "runtime",
        "local",
        ["local", "xla"],
        "For logdirs. xla: XLA compiles decoding: small batches are faster, but the first batch of "
        "each shape, and of each new value of an option, takes seconds.",
    )
    flags.DEFINE_string("host", "127.0.0.1", "Address; by default this machine alone can connect.")
    flags.DEFINE_integer("port", 8000, "Port; 0 for any that is free.", 0, 65535)
    flags.DEFINE_integer("n_best", 4, "Largest number of translations of a sentence.", 1)
    flags.DEFINE_integer("beam_size", 8, "Largest beam size of a request.", 1)
    flags.DEFINE_integer(
        "max_output_tokens",
        1024,
        "Tokens of the longest translation that the options of a request may allow (413 for more); "
        "the model's own options are always allowed.",
        1,
    )
    flags.DEFINE_integer("max_batch_tokens", 4096, "Tokens of a batch, with padding.", 1)
    flags.DEFINE_integer("max_batch_sentences", 64, "Sentences of a batch.", 1)
    flags.DEFINE_float(
        "max_wait_ms", 5, "Longest time that a sentence waits for others, in milliseconds.", 0
    )
    flags.DEFINE_integer("max_queue", 4096, "Sentences that may wait; more are refused (429).", 1)
    flags.DEFINE_float("timeout", 60, "Seconds to answer a request (504 after that).", 0.001)
    flags.DEFINE_integer("max_bytes", 1 << 20, "Bytes of a request (413 for more).", 1)
    flags.DEFINE_integer("max_sentences", 256, "Sentences of a request (413 for more).", 1)
    flags.DEFINE_integer("max_characters", 10_000, "Characters of a sentence (413 for more).", 1)
    flags.DEFINE_float("drain", 30, "Seconds to answer open requests after SIGTERM, at most.", 0)
    flags.DEFINE_multi_string("set", [], common.SET_HELP)
    common.run(main)


if __name__ == "__main__":
    run()
