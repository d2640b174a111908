"""Makes the directory of an export, with a program that runs the export."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from lingvo_moe.core import console, lines
from lingvo_moe.core.files import new_directory

MAKER = "lingvo-moe-export"
# With this the program finds the modules in its directory under `python -I` too, and adds no file
# to the directory: --overwrite does not replace a directory with additional files.
_BESIDE = (
    "sys.path.insert(0, str(Path(__file__).resolve().parent))\nsys.dont_write_bytecode = True\n"
)


@contextlib.contextmanager
def new_export(output: Path, program: str | None, name: str, overwrite: bool) -> Iterator[Path]:
    """Makes the directory of an export; see `core.files.new_directory`.

    Args:
        output: the directory, which appears when the block ends.
        program: a file of this package that runs the export without lingvo_moe. It may import
            `core.console` and `core.lines`, which are copied to the same directory. None for no
            program.
        name: the name of its copy.
        overwrite: whether to replace an earlier export.

    Yields:
        The directory to write into.

    Raises:
        ValueError: output holds something other than an export, or an export without `overwrite`.
        OSError: output cannot be written.
    """
    with new_directory(output, MAKER, overwrite) as directory:
        yield directory
        if program is None:
            return
        source = Path(__file__).with_name(program).read_text(encoding="utf-8")
        source = source.replace("from lingvo_moe.core.console", f"{_BESIDE}from console", 1)
        source = source.replace("from lingvo_moe.core.", "from ")
        (directory / name).write_text(source, encoding="utf-8")
        for module in map(Path, (console.__file__, lines.__file__)):
            (directory / module.name).write_bytes(module.read_bytes())
