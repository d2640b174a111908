"""The flags of the server; errors are found before a model is loaded."""

import json
import urllib.request

import pytest

from lingvo_moe.testing.commands import error_of
from lingvo_moe.testing.forks import Fork
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir
from lingvo_moe.testing.waiting import wait_until


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model=/nowhere"], "is no model"),
        (["--model==x"], "NAME=DIR"),
        (["--model=a=/x", "--model=a=/y"], "give names"),
        (["--model=/nowhere", "--max_queue=9"], "--max_queue"),
    ],
)
def test_errors(flags, message):
    assert message in error_of("serve", "--port=0", *flags)


@pytest.mark.parametrize("flag", ["--set=decoding.beam_size=2", "--runtime=xla"])
def test_flags_for_logdirs_are_refused_for_exports_alone(flag, tmp_path):
    (tmp_path / "saved_model.pb").touch()
    message = error_of("serve", f"--model={tmp_path}", "--port=0", flag)
    assert f"error: {flag} has an effect only with a logdir; drop it" in message


@pytest.mark.slow
def test_requests_of_many_kinds_log_no_warnings_about_traces(tmp_path):
    logdir = random_logdir(tmp_path / "model", SMALLEST).path
    server = Fork("lingvo_moe.tools.serve", f"--model={logdir}", "--port=0", "--drain=60")
    try:
        wait_until(lambda: "Serving model at " in server.errors(), "a server that serves")
        url = server.errors().rsplit("Serving model at ", 1)[1].strip()
        for beam_size in range(1, 9):
            fields = {"sentences": ["kara mi"], "to": "en", "beam_size": beam_size}
            fields |= {"tokens": beam_size % 2 == 0}
            request = urllib.request.Request(
                f"{url}v1/translate",
                json.dumps(fields).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request) as response:
                assert response.status == 200
        assert "retracing" not in server.errors()
    finally:
        server.kill()
        server.wait()
