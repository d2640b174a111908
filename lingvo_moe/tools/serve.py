r"""Serves models over HTTP: a JSON interface, and a web page for trying them.

lingvo-moe-serve --model=models/moe
lingvo-moe-serve --model=big=models/moe --model=small=export --host=0.0.0.0 --port=8080

After SIGTERM or Ctrl-C the server answers open requests for at most --drain seconds and ends, with
exit status 0, or 1 if some were left unanswered.
"""

import dataclasses
import logging
from typing import Any

from lingvo_moe.server.params import ServerParams
from lingvo_moe.tools import common
from lingvo_moe.tools.common import FLAGS, Flag

TABLE = (
    Flag("model", list, None, "NAME=DIR, or DIR: a logdir or an export. May be repeated.",
         required=True),
    Flag("runtime", ("local", "xla"), "local",
         "For logdirs. xla: XLA compiles decoding: small batches are faster, but the first "
         "batch of each shape, and of each new value of an option, takes seconds."),
    Flag("host", str, "127.0.0.1", "Address; by default this machine alone can connect."),
    Flag("port", int, 8000, "Port; 0 for any that is free.", least=0, most=65535),
    *common.flags_of(ServerParams()),
    Flag("drain", float, 30, "Seconds to answer open requests after SIGTERM, at most.", least=0),
    common.SET,
)  # fmt: skip


@common.tool(TABLE)
def main() -> None:
    """Flags to a server."""
    from lingvo_moe.server.app import Server
    from lingvo_moe.server.loading import load_all, split_name
    from lingvo_moe.server.run import bind, serve
    from lingvo_moe.tools.runtimes import RUNTIMES

    fields = dataclasses.fields(ServerParams)
    given: dict[str, Any] = {field.name: FLAGS[field.name].value for field in fields}
    limits = ServerParams(**given)
    with bind(FLAGS.host, FLAGS.port) as listener:
        exports = [(split_name(text)[1] / "saved_model.pb").exists() for text in FLAGS.model]
        common.check_effect("with a logdir", not all(exports), "set", "runtime")
        # The search is traced once for each set of options, and TensorFlow warns of many traces.
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        runtime = RUNTIMES[FLAGS.runtime]
        models = load_all(FLAGS.model, limits, FLAGS.set, runtime)
        serve(Server(models, limits), listener, FLAGS.drain, common.report)


if __name__ == "__main__":
    main()
