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


def test_no_file_imports_a_test():
    for path in PACKAGE.rglob("*.py"):
        tests = [name for name in modules(path) if re.search(r"^lingvo_moe\..*_test$", name)]
        assert not tests, f"{path} imports {tests}: move what both use to lingvo_moe/testing"
