"""Runs the tools in separate processes, as users do."""

import subprocess
import sys
from subprocess import CompletedProcess

SECONDS = 300  # timeout of a tool


def run_tool(tool: str, *arguments: object, stdin: str | None = None) -> CompletedProcess:
    """What a tool such as "train" printed, and its exit status."""
    command = [sys.executable, "-m", f"lingvo_moe.tools.{tool}", *map(str, arguments)]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def succeed(tool: str, *arguments: object, stdin: str | None = None) -> CompletedProcess:
    """`run_tool`, with exit status 0."""
    result = run_tool(tool, *arguments, stdin=stdin)
    assert result.returncode == 0, result.stderr
    return result


def error_of(tool: str, *arguments: object) -> str:
    """The one-line error of a tool that fails; its stdout must be empty."""
    result = run_tool(tool, *arguments)
    assert (result.returncode, result.stdout) == (1, ""), result.stderr
    assert "Traceback" not in result.stderr
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("error: ")
    return line
