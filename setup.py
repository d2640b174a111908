"""Packaging: no tests in the wheel, no links into the repository on the page of an index.

The rest is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

_INTO_THE_REPOSITORY = r"\]\((?!https?:)[^)]*\)"


class _WithoutTests(build_py):
    """A wheel has no tests: they need the repository's data."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        return [one for one in modules if not one[1].endswith("_test") and one[1] != "conftest"]


def _readme():
    """README with the text of its links alone, and without its pictures and their captions."""
    text = Path(__file__).with_name("README.md").read_text()
    text = re.sub(rf"!\[[^]]*{_INTO_THE_REPOSITORY}\n\n\*[^*]*\*\n\n", "", text)
    return re.sub(rf"\[([^]]*){_INTO_THE_REPOSITORY}", r"\1", text)


setup(
    cmdclass={"build_py": _WithoutTests},
    long_description=_readme(),
    long_description_content_type="text/markdown",
)
