"""From the command line to exports and back to text, as users go."""

import contextlib
import json
import re
import subprocess
import sys
import urllib.request

import pytest

import lingvo_moe as lm
from lingvo_moe.testing.commands import succeed
from lingvo_moe.testing.exports import LINES as UNICODE_LINES
from lingvo_moe.testing.forks import Fork
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir
from lingvo_moe.testing.tiny_world import SHRINK
from lingvo_moe.testing.waiting import wait_until

pytestmark = pytest.mark.slow
TINY = [f"--set={text}" for text in SHRINK]


# A line may contain any character but "\n" and the "\r" before it.
LINES = [
    *(line for line in UNICODE_LINES if "\r" not in line),
    "ka\tra mi", "mi\u2029ra", "🙂 kara", "tira so. " * 20,
]  # fmt: skip


def test_logdir_exports_and_server_give_the_same_bytes(tmp_path):
    """lm.load, the tool, a SavedModel with its client, and a server of both over a socket."""
    logdir, saved = (tmp_path / name for name in ("logdir", "saved"))
    random_logdir(logdir, SMALLEST)
    succeed("export", f"--logdir={logdir}", f"--output={saved}")
    expected = [best[0].text for best in lm.load(logdir).translate(LINES, "en")]
    assert len(set(expected)) > 4
    text = "".join(f"{line}\n" for line in LINES)
    tool = succeed("translate", f"--logdir={logdir}", "--to=en", stdin=text).stdout
    assert tool == "".join(f"{line}\n" for line in expected)
    client = subprocess.run(
        [sys.executable, "-I", str(saved / "translate.py"), "--to=en"],
        input=text.encode(),
        capture_output=True,
        timeout=600,
    )
    assert client.stdout == tool.encode(), client.stderr[-3000:]
    assert succeed("translate", f"--logdir={saved}", "--to=en", stdin=text).stdout == tool
    options = ["--set=decoding.min_length=7", "--n_best=2", "--set=decoding.target_prefix=the "]
    ours, theirs = (
        succeed("translate", f"--logdir={path}", *options, *LINES[:3]).stdout
        for path in (logdir, saved)
    )
    assert [line.split("\t")[1] for line in ours.splitlines()] == [
        line.split("\t")[1] for line in theirs.splitlines()
    ]
    with served(logdir, saved) as url:
        for name in ("logdir", "saved"):
            assert answers_of(url, name, LINES) == expected


@contextlib.contextmanager
def served(*directories):
    """The URL of lingvo-moe-serve, which runs until the block ends."""
    models = [f"--model={path.name}={path}" for path in directories]
    fork = Fork("lingvo_moe.tools.serve", *models, "--port=0")
    try:
        wait_until(lambda: "Serving" in fork.errors() or not fork.is_alive(), "a server", 300)
        yield re.search(r"http://\S+", fork.errors())[0]
    finally:
        fork.kill()


def answers_of(url, name, sentences):
    """The server's best translations."""
    body = json.dumps({"model": name, "sentences": sentences, "to": "en"}).encode()
    request = urllib.request.Request(f"{url}v1/translate", body)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=300) as response:
        return [best[0]["text"] for best in json.load(response)["translations"]]
