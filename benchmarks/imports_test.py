"""What the scripts for peers import of the package exists; mypy checks the other benchmarks."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

_FILES = sorted((Path(__file__).parent / "_peers").glob("*.py"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.name)
def test_names_that_are_imported_exist(path):
    imports = [
        node
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lingvo_moe.")
    ]
    missing = [
        f"{node.module}.{alias.name}"
        for node in imports
        for alias in node.names
        if not hasattr(importlib.import_module(node.module), alias.name)
        and not importlib.util.find_spec(f"{node.module}.{alias.name}")
    ]
    assert not missing
