"""Who may import whom: the picture of docs/architecture.md, held against the code."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent

_BELOW_TASKS = {
    "core",
    "reporting",
    "sharding",
    "sbp",
    "hardware",
    "gatings",
    "layers",
    "decoding",
    "train",
    "data",
    "evaluation",
    "placement",
}
ALLOWED = {
    "core": set(),
    "reporting": {"core"},
    "testing": {"data", "layers"},
    "sharding": {"core"},
    "sbp": {"core", "sharding"},
    "hardware": {"core", "sharding", "sbp"},
    "gatings": {"core"},
    "layers": {"core", "sharding", "gatings"},
    "decoding": {"core", "layers"},
    "train": {"core", "sharding"},
    "data": {"core", "reporting"},
    "evaluation": {"core", "reporting", "data"},
    "placement": {"core", "reporting", "hardware", "layers", "train"},
    "runtimes": {"core", "sharding", "train"},
    "tasks": _BELOW_TASKS,
    "serving": _BELOW_TASKS | {"tasks", "runtimes", "planning"},
    "params": _BELOW_TASKS | {"tasks"},
    "planning": _BELOW_TASKS | {"tasks", "params", "runtimes"},
    "tools": _BELOW_TASKS | {"tasks", "serving", "params", "runtimes", "planning", "placement"},
}


def _imported_packages(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {n.split(".")[1] for n in names if n.startswith("lingvo_moe.")}


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_downwards(package):
    sources = [p for p in (PACKAGE / package).rglob("*.py") if not p.name.endswith("_test.py")]
    assert sources, f"package {package} is empty"
    for path in sources:
        forbidden = _imported_packages(path) - ALLOWED[package] - {package, "__version__"}
        assert not forbidden, f"{path.relative_to(PACKAGE)} may not import {sorted(forbidden)}"


def test_every_package_has_a_rule():
    packages = {p.parent.name for p in PACKAGE.glob("*/__init__.py")}
    assert packages <= set(ALLOWED)


def test_files_stay_readable():
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 500, f"{path} is over 500 lines: split it"
