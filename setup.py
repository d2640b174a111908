"""Packaging of lingvo_moe: what follows from the code. The rest is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

_ROOT = Path(__file__).parent
_TOOLS = sorted(
    path.stem
    for path in (_ROOT / "lingvo_moe" / "tools").glob("[a-z]*.py")
    if "\n@common.tool(" in path.read_text()  # the others are what tools share
)

_BEAM = "apache-beam>=2.77,<3"
_CTRANSLATE2 = "ctranslate2>=4.5,<5"
_JAX = "jax>=0.10,<0.13"
_HYPOTHESIS = "hypothesis>=6,<7"
_LANGID = "py3langid>=0.4,<1"
_SERVE = ["prometheus_client>=0.20,<1", "starlette>=0.40,<2", "uvicorn>=0.30,<1"]
_ZSTD = "backports.zstd>=1,<2; python_version < '3.14'"


class _WithoutTests(build_py):
    """A wheel has no tests: they need the repository's data."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        return [one for one in modules if not one[1].endswith("_test") and one[1] != "conftest"]


setup(
    cmdclass={"build_py": _WithoutTests},
    version=re.search(
        r'__version__ = "(.+)"', (_ROOT / "lingvo_moe" / "__init__.py").read_text()
    ).group(1),
    packages=find_packages(include=["lingvo_moe*"], exclude=["lingvo_moe.testing*"]),
    package_data={"lingvo_moe": ["py.typed"], "lingvo_moe.server": ["page/*"]},
    install_requires=[
        "absl-py>=2.1,<3",
        "langcodes>=3.5,<4",
        "matplotlib>=3.8,<4",
        "numpy>=1.26,<3",
        "pillow>=10",
        "protobuf>=6.31,<8",
        "sacrebleu>=2.4,<3",
        "scipy>=1.11,<2",
        # sentencepiece 0.2.2 takes minutes to train a vocabulary if sentences of small languages
        # are repeated.
        "sentencepiece>=0.2,!=0.2.2,<0.3",
        "sentencex>=1,<2",
        "tensorflow>=2.21,<2.22",
        "tensorflow-text>=2.21,<2.22",
    ],
    extras_require={
        "serve": _SERVE,
        "langid": [_LANGID],
        "zstd": [_ZSTD],
        "beam": [_BEAM],
        "spmd": [_JAX],
        "tpu": ["libtpu"],
        "ctranslate2": [_CTRANSLATE2],
        "dev": [
            _JAX,
            _CTRANSLATE2,
            *_SERVE,
            _HYPOTHESIS,
            _LANGID,
            _ZSTD,
            "httpx>=0.27,<1",
            "keras>=3",
            "mypy>=1.15,<2",
            "pytest>=8,<10",
            "pytest-xdist>=3,<4",
            "ruff>=0.12,<0.18",
            "safetensors>=0.4,<1",
            "setuptools>=77",
        ],
    },
    entry_points={
        "console_scripts": [
            f"lingvo-moe-{tool.strip('_').replace('_', '-')}=lingvo_moe.tools.{tool}:main"
            for tool in _TOOLS
        ]
    },
)
