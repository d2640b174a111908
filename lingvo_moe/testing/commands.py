"""Runs the tools in separate processes, as users do."""

from subprocess import CompletedProcess

from lingvo_moe.testing.forks import Fork


def run_tool(tool: str, *arguments: object, stdin: str = "") -> CompletedProcess:
    """What a tool such as "train", or a module with dots, printed, and its exit status."""
    program = tool if "." in tool else f"lingvo_moe.tools.{tool}"
    return Fork(program, *map(str, arguments), stdin=stdin).wait()


def succeed(tool: str, *arguments: object, stdin: str = "") -> CompletedProcess:
    """`run_tool`, with exit status 0."""
    result = run_tool(tool, *arguments, stdin=stdin)
    assert result.returncode == 0, result.stderr
    return result


def error_of(tool: str, *arguments: object) -> str:
    """The one-line error of a tool that fails; its stdout must be empty."""
    result = run_tool(tool, *arguments)
    assert (result.returncode, result.stdout) == (1, ""), result.stderr
    assert "Traceback" not in result.stderr, result.stderr[-3000:]
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("error: ")
    return line
