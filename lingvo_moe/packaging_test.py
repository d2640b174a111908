"""What is imported is required, and every tool has a script, in pyproject.toml."""

import ast
import importlib.metadata
import itertools
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_every_package_that_is_imported_is_required():
    names = _names([*PROJECT["dependencies"], *itertools.chain(*EXTRAS.values())])
    distributions = importlib.metadata.packages_distributions()
    for path in (ROOT / "lingvo_moe").rglob("*.py"):
        for package in _imported(path) - sys.stdlib_module_names - {"lingvo_moe"}:
            known = {
                name.lower().replace("_", "-") for name in distributions.get(package, (package,))
            }
            assert known & names, f"{path} imports {package}, which pyproject.toml does not require"


def test_the_tested_versions_cover_what_is_required():
    here, *others = EXTRAS["dev"]
    extras = re.fullmatch(r"lingvo-moe\[(.+)\]", here)[1].split(",")
    needed = [*PROJECT["dependencies"], *others, *itertools.chain(*(EXTRAS[e] for e in extras))]
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    known = {name.lower().replace("_", "-") for name in pinned}
    assert _names(needed) - known <= {"setuptools"}  # pip freeze leaves it out


def test_every_tool_has_a_script():
    tools = {
        path.stem
        for path in (ROOT / "lingvo_moe" / "tools").glob("*.py")
        if "\n@common.tool(" in path.read_text()
    }
    assert set(PROJECT["scripts"].items()) == {
        (f"lingvo-moe-{tool.strip('_')}", f"lingvo_moe.tools.{tool}:main") for tool in tools
    }


def test_the_page_of_an_index_has_no_links_into_the_repository():
    page = importlib.metadata.metadata("lingvo-moe").get_payload()
    assert page.startswith("# lingvo_moe")
    assert set(re.findall(r"\]\((\w+:|)", page)) == {"https:"}


def _names(requirements):
    """The names of required distributions."""
    return {re.match(r"[\w.-]+", text)[0].lower().replace("_", "-") for text in requirements}


def _imported(path):
    """The top-level packages that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in plain | parts}
