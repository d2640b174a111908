"""Common parts of the tools: flags, help, and errors in one line."""

import contextlib
import dataclasses
import functools
import inspect
import io
import math
import os
import re
import sys
import traceback
import typing
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import tensorflow as tf
from absl import app, flags, logging

from lingvo_moe import __version__
from lingvo_moe.config.fields import FROM_DATA, Params, alternatives, is_literal
from lingvo_moe.config.plugins import import_plugins, source_files
from lingvo_moe.system import console
from lingvo_moe.system.files import check_local
from lingvo_moe.system.lines import printable
from lingvo_moe.system.progress import report as report  # for the tools

FLAGS = flags.FLAGS
MODEL_HELP = "Name of a registered model; see lingvo-moe-models."
NAMES = "names"  # the kind of a flag with names that have commas between them


class Flag(NamedTuple):
    """A flag of a tool.

    Attributes:
        name: of the flag.
        kind: str, int, float or bool; list, of a text that may be repeated; NAMES; or a tuple of
            the values that it may have.
        default: its value if it is not given.
        help: what `--help` shows.
        least, most: limits of a number.
        required: whether it must be given.
    """

    name: str
    kind: Any
    default: Any
    help: str
    least: float | None = None
    most: float | None = None
    required: bool = False

    def define(self) -> None:
        """Defines it."""
        given = self.name, self.default, self.help
        required = {"required": True} if self.required else {}
        if self.kind == NAMES:
            flags.DEFINE_multi_string(self.name, [], f"{self.help} May be repeated.")
        elif isinstance(self.kind, tuple):
            flags.DEFINE_enum(self.name, self.default, self.kind, self.help)
        elif self.kind in (int, float):
            define: Any = flags.DEFINE_integer if self.kind is int else flags.DEFINE_float
            define(*given, self.least, self.most, **required)
        else:
            kinds: Any = {str: flags.DEFINE_string, bool: flags.DEFINE_bool}
            kinds.get(self.kind, flags.DEFINE_multi_string)(*given, **required)


def flags_of(params: Params, *names: str) -> list[Flag]:
    """Flags for fields of params, by default for all: their types, their defaults (None for
    FROM_DATA), and what the docstring of their class says of them."""
    cls: Any = type(params)
    hints, flags = typing.get_type_hints(cls), []
    about = inspect.cleandoc(cls.__doc__ or "")  # no docstrings with python -OO
    for name in names or [field.name for field in dataclasses.fields(cls)]:
        kind = alternatives(hints[name])[0]
        entry = re.search(rf"^    (?:\w+, )*{name}(?:, \w+)*: (.*(?:\n {{8}}.*)*)", about, re.M)
        text = " ".join(entry[1].split()) if entry else ""
        choices = typing.get_args(kind) if is_literal(kind) else kind
        default = getattr(params, name)
        default = None if default is FROM_DATA else default
        flags.append(Flag(name, choices, default, text[:1].upper() + text[1:]))
    return flags


OVERWRITE = Flag("overwrite", bool, False, "Replace an output that this tool made before.")
SET = Flag(
    "set", list, [], "Override a field of the params: --set=train.max_steps=500. May be repeated."
)
STEP = Flag("step", int, None, "Step of the checkpoint; by default the best on dev.")
CHECKED_MODEL = Flag("model", str, None, "Check that the logdir is of this model.")
EXPECTED, INTERNAL = 1, 70  # exit statuses
_HELP = {"--help", "--helpshort", "--helpfull", "--helpxml"}  # absl ends with 1 after these

_EXPECTED_ERRORS = (
    ValueError,
    OSError,
    FloatingPointError,
    ImportError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.DataLossError,
    tf.errors.UnavailableError,
)


def tool(table: Sequence[Flag] = (), takes_arguments: bool = False) -> Callable[..., Any]:
    """Makes a function that reads FLAGS the `main(argv)` of a tool; an error ends it in one line.

    The exit status is 1 after an error that the user can fix, and 70 after any other.

    Args:
        table: the tool's flags.
        takes_arguments: whether the function takes the list of arguments that are not flags.

    Returns:
        A decorator. `main(argv)` takes the program's name and the arguments; by default sys.argv.
    """

    def decorate(function):
        @functools.wraps(function)
        def main(argv: Sequence[str] | None = None) -> None:
            if argv is not None:
                sys.argv = list(argv)
            with one_line_errors():
                arguments = _parsed(table, sys.modules[function.__module__])
                if arguments and not takes_arguments:
                    raise ValueError(f"Unexpected arguments {arguments}; flags begin with --.")
                function(*([arguments] if takes_arguments else []))

        return main

    return decorate


def _parsed(table: Sequence[Flag], module: ModuleType) -> list[str]:
    """Defines and parses the flags of a tool, imports plug-ins; returns the other arguments."""
    for stream in (sys.stdout, sys.stderr):  # text is UTF-8 in every locale
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    for flag in table:
        flag.define()
    app.define_help_flags()
    define_help(module)
    given = ["--help" if one == "-h" else one for one in at_home(sys.argv)]
    if "--version" in given:
        print(f"lingvo_moe {__version__}")
        raise SystemExit(0)
    try:
        arguments = _parse(given)[1:]
    except SystemExit as end:
        raise SystemExit(0 if _HELP & set(given) else end.code) from end
    logging.use_absl_handler()
    if not FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    for name, value in FLAGS.flag_values_dict().items():
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"--{name}=nan is not a number; give one.")
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str):
                check_local(f"--{name}", one)
    for flag in table:
        if flag.kind == NAMES:
            texts = FLAGS[flag.name].value or ()
            FLAGS[flag.name].value = [name for text in texts for name in text.split(",")]
    import_plugins(FLAGS["import"].value or ())
    return arguments


def _parse(arguments: Sequence[str]) -> list[str]:
    """Parses flags, and returns the other arguments; what is wrong with a flag is one line."""
    try:
        return FLAGS(arguments)
    except flags.Error as error:
        if missing := re.findall(r"flag (--\w+)=None: Flag", str(error)):
            raise ValueError(f"Give {' and '.join(missing)}; --help explains them.") from error
        text = str(error).removesuffix(".").replace(" ?", "?")
        raise ValueError(
            f"{text}{'' if text[-1] == '?' else '.'} --help lists the flags."
        ) from error


def at_home(arguments: Sequence[str]) -> list[str]:
    """Arguments with the home directory for the "~" of `--flag=~/path`.

    A shell replaces only a "~" that begins a word. Without this function a directory named "~"
    would be made.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)

    def expanded(argument):
        name, _, value = argument.partition("=")
        return f"{name}={os.path.expanduser(value)}" if value.startswith("~/") else argument

    before = (expanded(one) if one.startswith("-") else one for one in arguments[:end])
    return [*before, *arguments[end:]]


def check_effect(needed: str, holds: bool, *names: str) -> None:
    """Checks that flags, and fields of --set, are given only where they have an effect.

    Args:
        needed: when they have one, such as "with --prune".
        holds: whether this is so.
        names: of flags or fields; those that the tool does not define are left out.

    Raises:
        ValueError: one of them is given in vain.
    """
    given = [] if holds else [text for name in names for text in _given(name)]
    if given:
        raise ValueError(
            f"{given[0]} has an effect only {needed}; drop it, or give the command {needed}."
        )


def _given(name):
    """How the flag or the field of --set of this name is given."""
    if name in FLAGS and FLAGS[name].present:
        yield FLAGS[name].serialize().splitlines()[0]
    for text in FLAGS.set if "set" in FLAGS else ():
        if text.partition("=")[0].strip() == name:
            yield f"--set={text}"


def define_help(module: ModuleType) -> None:
    """Makes `--help` and `--helpshort` show a tool's docstring and all flags of this package.

    By default they show those of the file that Python was started with. For a console script that
    file has neither.
    """
    sys.modules["__main__"].__doc__ = (module.__doc__ or "").replace("%", "%%")
    for name, defined in FLAGS.flags_by_module_dict().items():
        for flag in defined:
            if name.startswith("lingvo_moe."):
                FLAGS.register_key_flag_for_module(sys.argv[0], flag)


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """An error in the block is printed as by `status_and_line` and ends the process."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # a failure to write the output is an error too
    except Exception as error:
        if FLAGS["debug"].value or isinstance(error, BrokenPipeError):
            raise
        status, message = status_and_line(error)
        report(message)
        console.drop_output()
        sys.exit(status)


def status_and_line(error: Exception) -> tuple[int, str]:
    """The exit status and the line that an error ends a tool with."""
    text = _one_line(str(error)) or type(error).__name__
    if isinstance(error, MemoryError | tf.errors.ResourceExhaustedError) or (
        text.startswith("RESOURCE_EXHAUSTED")  # JAX's
    ):
        return EXPECTED, (
            f"error: Memory or disk space is exhausted ({text}). Use smaller batches, a smaller "
            f"model or more devices, or free space."
        )
    frames = traceback.extract_tb(error.__traceback__)
    files = {str(file.resolve()) for file in source_files()}
    if own := [one for one in frames if os.path.realpath(one.filename) in files]:
        where, kind = f"{own[-1].filename}:{own[-1].lineno}", type(error).__name__
        return EXPECTED, f"error: in the plug-in {where}: {kind}: {text}"
    if isinstance(error, _EXPECTED_ERRORS):
        return EXPECTED, f"error: {text}"
    frame = frames[-1]
    return INTERNAL, (
        f"internal error: {type(error).__name__}: {text} ({frame.filename}:{frame.lineno}). Run "
        f"with --debug for the traceback, and please report this error."
    )


def _one_line(text: str) -> str:
    """The first line that is not blank, without characters that control a terminal."""
    lines = [line for line in text.splitlines() if line.strip()]
    more = " … (--debug shows all)" if len(lines) > 1 else ""
    return printable("".join(lines[:1])) + more


flags.DEFINE_bool("debug", False, "Show the traceback of an error.")
flags.DEFINE_multi_string(
    "import",
    [],
    "A module, or a file such as mine.py, with models and policies for --model and --set. May be "
    "repeated; a logdir stores the names.",
)
