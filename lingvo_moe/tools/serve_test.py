"""The flags of the server; errors are found before a model is loaded."""

import json
import types
import urllib.request

import pytest

from lingvo_moe.server import loading, run
from lingvo_moe.testing.commands import error_of
from lingvo_moe.testing.forks import Fork
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir
from lingvo_moe.testing.waiting import wait_until
from lingvo_moe.tools import serve


@pytest.fixture
def call(monkeypatch):
    """The tool with flags; returns what it would have served."""
    served = []

    def serve_it(server, listener, drain, report):
        served.append((server.names, listener.getsockname()[0], drain))

    monkeypatch.setattr(run, "serve", serve_it)

    def call(**values):
        chosen = {"model": ["/nowhere"], "host": "127.0.0.1", "port": 0, "n_best": 4}
        chosen |= {"max_batch_tokens": 64, "max_batch_sentences": 4, "max_wait_ms": 5.0}
        chosen |= {"beam_size": 8, "max_output_tokens": 99, "set": [], "runtime": "local"}
        chosen |= {"max_queue": 512, "timeout": 60.0, "max_bytes": 999, "max_sentences": 256}
        chosen |= {"max_characters": 100, "drain": 30.0} | values
        monkeypatch.setattr(serve, "FLAGS", types.SimpleNamespace(**chosen))
        serve.main()
        return served.pop()

    return call


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "/nowhere is no model: it has neither"),
        ({"model": ["=x"]}, "--model==x: write it as NAME=DIR"),
        ({"model": ["a=/x", "a=/y"]}, "Several models have the name a; give names"),
    ],
)
def test_errors(call, values, message):
    with pytest.raises((ValueError, OSError), match=message):
        call(**values)


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


def test_it_serves(call, monkeypatch):
    model = types.SimpleNamespace(languages=[], options=[])
    monkeypatch.setattr(loading, "load_all", lambda *arguments: {"m": model})
    assert call() == (("m",), "127.0.0.1", 30.0)
    with pytest.raises(ValueError, match="may have 256 sentences, but only 255 may wait"):
        call(max_queue=255)
