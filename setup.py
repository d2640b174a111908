"""Packaging of lingvo_moe: leaves the tests out of the wheel. The rest is in pyproject.toml."""

from setuptools import setup
from setuptools.command.build_py import build_py


class _WithoutTests(build_py):
    """A wheel has no tests: they need the repository's data."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        return [one for one in modules if not one[1].endswith("_test") and one[1] != "conftest"]


setup(cmdclass={"build_py": _WithoutTests})
