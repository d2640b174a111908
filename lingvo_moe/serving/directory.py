"""Makes the directory of an export, with a program that runs the export."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from lingvo_moe.system.files import new_directory

MAKER = "lingvo-moe-export"
_PACKAGE = Path(__file__).parents[1]
_IMPORT = re.compile(r"^from lingvo_moe\.(\w+)\.(\w+) import", re.MULTILINE)
# With this the program finds the modules in its directory under `python -I` too, and adds no file
# to the directory: --overwrite does not replace a directory with additional files.
_BESIDE = """import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

"""


@contextlib.contextmanager
def new_export(output: Path, program: str | None, name: str, overwrite: bool) -> Iterator[Path]:
    """Makes the directory of an export; see `system.files.new_directory`.

    Args:
        output: the directory, which appears when the block ends.
        program: a file of this package that runs the export without lingvo_moe. The modules of
            this package that it imports, by `from … import`, are copied to the same directory. None
            for no program.
        name: the name of its copy.
        overwrite: whether to replace an earlier export.

    Yields the directory to write into. Raises ValueError: output holds something other than an
    export, or an export without `overwrite`; OSError: output cannot be written.
    """
    with new_directory(output, MAKER, overwrite) as directory:
        yield directory
        if program is not None:
            source = Path(__file__).with_name(program).read_text(encoding="utf-8")
            if first := _IMPORT.search(source):
                source = source[: first.start()] + _BESIDE + source[first.start() :]
            (directory / name).write_text(_copied(source, directory), encoding="utf-8")


def _copied(source, directory):
    """A program that imports its modules from its directory, to which they are copied."""
    for package, module in set(_IMPORT.findall(source)):
        path = directory / f"{module}.py"
        if not path.exists():
            text = (_PACKAGE / package / path.name).read_text(encoding="utf-8")
            path.write_text(_copied(text, directory), encoding="utf-8")
    return _IMPORT.sub(r"from \2 import", source)
