"""What the benchmarks and examples import of the package exists; most of them run only by hand."""

import ast
import importlib
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_FILES = sorted(
    path.relative_to(_ROOT)
    for directory in ("benchmarks", "examples")
    for path in (_ROOT / directory).rglob("*.py")
)


@pytest.mark.parametrize("path", _FILES, ids=str)
def test_names_that_are_imported_exist(path):
    for node in ast.walk(ast.parse((_ROOT / path).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lingvo_moe"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):  # or it is a module
                    importlib.import_module(f"{node.module}.{alias.name}")
