"""What is imported is required by setup.py."""

import ast
import importlib.metadata
import itertools
import re
import runpy
import sys
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).parent.parent


@pytest.fixture
def given(monkeypatch):
    """What setup.py gives to setuptools."""
    found = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: found.update(options))
    runpy.run_path(str(ROOT / "setup.py"))
    return found


def test_every_package_that_is_imported_is_required(given):
    extras = itertools.chain(*given["extras_require"].values())
    required = {*given["install_requires"], *extras}
    names = {re.match(r"[\w.-]+", text)[0].lower().replace("_", "-") for text in required}
    distributions = importlib.metadata.packages_distributions()
    for path in (ROOT / "lingvo_moe").rglob("*.py"):
        for package in _imported(path) - sys.stdlib_module_names - {"lingvo_moe"}:
            known = {
                name.lower().replace("_", "-") for name in distributions.get(package, (package,))
            }
            assert known & names, f"{path} imports {package}, which setup.py does not require"


def test_the_tested_versions_cover_what_is_required(given):
    needed = [*given["install_requires"], *given["extras_require"]["dev"]]
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    known = {name.lower().replace("_", "-") for name in pinned}
    names = {re.match(r"[\w.-]+", text)[0].lower().replace("_", "-") for text in needed}
    assert names - known <= {"setuptools"}  # pip freeze leaves it out


def _imported(path):
    """The top-level packages that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in plain | parts}
