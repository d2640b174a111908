"""What the tools share: flags, runtimes, and errors as one clear line."""

import sys
from collections.abc import Callable

from absl import app, flags, logging

from lingvo_moe.runtimes.local import Local

MODEL_HELP = "Name of a registered model; see lingvo-moe-models."
SET_HELP = "Override a field of the params: --set=train.max_steps=500. May be repeated."


def report(line: str) -> None:
    """Progress goes to standard error, so that results alone are on standard output."""
    print(line, file=sys.stderr, flush=True)


def make_runtime(task, step=None) -> Local:
    """The runtime that the flags ask for."""
    return Local(task, step)


def run(main: Callable[[list[str]], None]) -> None:
    """Parses flags and calls main; an expected error ends in one line and exit status 1."""
    app.run(lambda argv: _call(main, argv))


def _call(main, argv):
    if len(argv) > 1 and not getattr(main, "takes_arguments", False):
        raise app.UsageError(f"Unexpected arguments {argv[1:]}; flags begin with --.")
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    try:
        main(argv)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; nothing is wrong
    except (ValueError, OSError, FloatingPointError) as error:
        if flags.FLAGS.debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


flags.DEFINE_bool("debug", False, "Show the traceback of an error.")
