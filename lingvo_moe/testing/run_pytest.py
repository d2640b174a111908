"""Runs the test files given as arguments with pytest: the main program of Bazel's test targets."""

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(["-p", "no:cacheprovider", *sys.argv[1:]]))
