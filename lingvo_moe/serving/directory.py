"""The directory of an export: it appears whole, with a program in it that shows how to use it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from lingvo_moe.core import console, lines
from lingvo_moe.core.files import new_directory

MAKER = "lingvo-moe-export"
# The program finds what lies beside it with `python -I`, too, and adds no file to the directory:
# a directory with files that the tool did not make is never replaced.
_BESIDE = (
    "sys.path.insert(0, str(Path(__file__).resolve().parent))\nsys.dont_write_bytecode = True\n"
)


@contextlib.contextmanager
def new_export(output: Path, program: str, name: str, overwrite: bool) -> Iterator[Path]:
    """Makes the directory of an export; see `core.files.new_directory`.

    Args:
        output: where it appears when the block ends.
        program: file of this package that runs the export without lingvo_moe. It may import
            `core.console` and `core.lines`, which are copied beside it.
        name: what it is called there.
        overwrite: whether to replace an earlier export.

    Yields:
        The directory to write into.

    Raises:
        ValueError: something that is no export lies at output, or one that may not be replaced.
        OSError: output cannot be written.
    """
    with new_directory(output, MAKER, overwrite) as directory:
        yield directory
        source = Path(__file__).with_name(program).read_text(encoding="utf-8")
        source = source.replace("from lingvo_moe.core.console", f"{_BESIDE}from console", 1)
        source = source.replace("from lingvo_moe.core.", "from ")
        (directory / name).write_text(source, encoding="utf-8")
        for module in map(Path, (console.__file__, lines.__file__)):
            (directory / module.name).write_bytes(module.read_bytes())
