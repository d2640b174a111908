"""Headless Chromium, controlled through a pipe; for tests of pages."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lingvo_moe.testing.waiting import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_COMMANDS, _ANSWERS = 3, 4  # the file descriptors that --remote-debugging-pipe uses


class Browser:
    """One page, controlled by the DevTools protocol: JSON texts that end in a NUL."""

    def __init__(self, commands: int, answers: int):
        self._commands, self._answers = commands, os.fdopen(answers, "rb")
        self._number, self._session = 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, url: str) -> None:
        """Goes to a page and waits until it is loaded."""
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page, a promise's too."""
        result = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, script: str, seconds: float = 60) -> None:
        """Waits until an expression is true."""
        wait_until(lambda: self.run(script), script, seconds)

    def _read(self):
        message = bytearray()
        while (byte := self._answers.read(1)) not in (b"\0", b""):
            message += byte
        return json.loads(message)


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile in a new directory."""
    their_commands, our_commands = os.pipe()
    our_answers, their_answers = os.pipe()
    process = subprocess.Popen(
        [
            "bash",
            "-c",
            f'exec "$0" "$@" {_COMMANDS}<&{their_commands} {_ANSWERS}>&{their_answers}',
            str(CHROMIUM),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--window-size=1000,1200",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
        ],
        pass_fds=(their_commands, their_answers),
        stderr=subprocess.DEVNULL,
    )
    os.close(their_commands)
    os.close(their_answers)
    try:
        yield Browser(our_commands, our_answers)
    finally:
        process.kill()
        process.wait()
        os.close(our_commands)
