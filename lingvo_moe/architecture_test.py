"""Imports between packages: the table of docs/architecture.md equals the code's."""

import ast
import functools
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent
PAGE = PACKAGE.parent / "docs" / "architecture.md"
PACKAGES = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def table() -> dict[str, set[str]]:
    """Package -> those that it imports, in the order of the page."""
    rows = re.findall(r"^\| (\w+) \| .* \| ([\w, –]+) \|$", PAGE.read_text(), re.MULTILINE)
    return {name: set(imports.split(", ")) - {"–"} for name, imports in rows[1:]}  # below the head


@functools.cache
def modules(path: Path) -> set[str]:
    """The modules that a file imports, and what it imports of them."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{a.name}" for a in node.names)}
    return names


def imported(path: Path) -> set[str]:
    """The packages that a file imports."""
    return {n.split(".")[1] for n in modules(path) if n.startswith("lingvo_moe.")} & PACKAGES


def test_the_table_has_every_package():
    assert set(table()) == PACKAGES


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_imports_are_those_of_the_table(package):
    sources = [p for p in (PACKAGE / package).rglob("*.py") if not p.name.endswith("_test.py")]
    used = set().union(*map(imported, sources)) - {package}
    listed = table().get(package, set())
    where = {p.relative_to(PACKAGE).as_posix() for p in sources if imported(p) & (used - listed)}
    assert used <= listed, (
        f"{sorted(where)} import {sorted(used - listed)}, which the row {package!r} of {PAGE.name} "
        f"does not list"
    )
    assert used == listed, (
        f"the row {package!r} of {PAGE.name} lists {sorted(listed - used)}, which it never imports"
    )


def test_the_api_is_between_the_tools_and_the_rest():
    assert "tools" not in imported(PACKAGE / "api.py")
    sources = [p for p in PACKAGE.glob("*/**/*.py") if not p.name.endswith("_test.py")]
    users = {p.relative_to(PACKAGE).parts[0] for p in sources if "lingvo_moe.api" in modules(p)}
    assert users == {"tools"}


def test_imports_point_downwards():
    """Some order of the packages has each below all that import it."""
    left = table()
    while ready := [name for name, imports in left.items() if not imports & set(left)]:
        left = {name: imports for name, imports in left.items() if name not in ready}
    assert not left, f"packages import one another in a circle: {sorted(left)}"


def private_uses(source: str, ours: set[str]) -> list[str]:
    """The modules below `tensorflow`, and the private names of libraries, that a source uses.

    Args:
        source: Python text.
        ours: names that this package gives to functions, fields and variables.
    """
    attributes, found = [], []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            attributes.append(node.attr)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
            attributes += [alias.name for alias in node.names]
    found = [name for name in found if re.match(r"tensorflow\.|.*\._", name)]
    return found + [name for name in attributes if re.match("_[^_]", name) and name not in ours]


def names_of(source: str) -> set[str]:
    """The names that a source gives to something."""
    names = {"_replace", "_asdict", "_fields", "_make"}  # public, of named tuples
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


def test_one_file_uses_private_parts_of_tensorflow():
    sources = {p.relative_to(PACKAGE).as_posix(): p.read_text() for p in PACKAGE.rglob("*.py")}
    ours = set().union(*map(names_of, sources.values()))
    uses = {path: private_uses(source, ours) for path, source in sources.items()}
    assert len(uses.pop("core/tensorflow_private.py")) == 10
    assert uses.pop("runtimes/processes.py") == ["jax._src", "_exit"]
    found = {path: set(names) - {"_exit"} for path, names in uses.items()}
    assert {path: names for path, names in found.items() if names} == {
        "testing/forks.py": {"_run_exitfuncs"}  # of atexit
    }


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ("from tensorflow.compiler.xla import xla_data_pb2", ["tensorflow.compiler.xla"]),
        ("def f():\n  import tensorflow.core.framework as x", ["tensorflow.core.framework"]),
        ("from tensorflow.python import ops", ["tensorflow.python"]),
        ("operation._set_attr('a', b)", ["_set_attr"]),
        ("from jax._src import distributed", ["jax._src"]),
        ("import tensorflow as tf\nself._mine.__dict__\ntf.compat.v1", []),
    ],
)
def test_what_counts_as_private(source, private):
    assert private_uses(source, {"_mine"}) == private


def test_one_file_reads_and_writes_npz():
    """Also `serving/run_stablehlo.py`, which is copied to exports and imports nothing of ours."""
    calls = re.compile(r"np\.savez|with np\.load\(")
    sources = [p for p in PACKAGE.rglob("*.py") if not p.name.endswith("_test.py")]
    found = {p.relative_to(PACKAGE).as_posix() for p in sources if calls.search(p.read_text())}
    found = {name for name in found if not name.startswith("testing/")}
    assert found == {"core/npz.py", "serving/run_stablehlo.py"}


def test_no_file_imports_a_test():
    for path in PACKAGE.rglob("*.py"):
        tests = [name for name in modules(path) if re.search(r"^lingvo_moe\..*_test$", name)]
        assert not tests, f"{path} imports {tests}: move what both use to lingvo_moe/testing"
