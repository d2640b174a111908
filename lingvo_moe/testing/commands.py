"""The tools as their users run them: in processes of their own."""

import subprocess
import sys
from subprocess import CompletedProcess

SECONDS = 300  # after which a tool is taken to hang


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
    """The one line in which a tool says what its user is to mend; nothing stands on stdout."""
    result = run_tool(tool, *arguments)
    assert (result.returncode, result.stdout) == (1, ""), result.stderr
    assert "Traceback" not in result.stderr
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("error: ")
    return line
