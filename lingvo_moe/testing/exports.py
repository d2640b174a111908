"""Texts for exported models, and runs of exported programs in processes without TensorFlow."""

import os
import subprocess
import sys

# With line ends and spaces of Unicode, blank lines, one of many tokens, two without words,
# and one in capitals.
LINES = [
    "kara mi", "ka\u2028ra", "mi\x85ra", "ti\x0cra so", "ka\x0bra", "a\x1cb\x1dc\x1ed", "mi\rra",
    "", "\u3000", "\xa0", "\u200b", " \t", "\ufeff", "kara " * 10, "mira",
    "10.2", "(https://a.b)\x85", "KARA MI SO",
]  # fmt: skip
_BARE = """
import importlib.abc, os, runpy, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("lingvo_moe", "tensorflow", "absl"):
            raise ImportError(f"{name} must not be needed")
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_bare(directory, *arguments, stdin="", program="run.py"):
    """The result of an exported program, in a process without this package and TensorFlow."""
    return subprocess.run(
        [sys.executable, "-I", "-c", _BARE, str(directory / program), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd="/",
        timeout=600,
        env=os.environ
        | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"},
    )
