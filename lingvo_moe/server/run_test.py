"""A server as a process of its own, with real sockets and signals, and a slow model."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

from lingvo_moe.server.run import bind

_PROGRAM = """
import sys, time, types
from lingvo_moe.server.app import Server
from lingvo_moe.server.run import bind, serve

def translate(sentences, to, **rest):
    seconds = max(float(sentence) for sentence in sentences)
    print(f"translates {len(sentences)}", flush=True)
    time.sleep(seconds)
    return [[types.SimpleNamespace(text=s, score=0.0)] for s in sentences]

model = types.SimpleNamespace(
    languages=["en"], pairs=["de-en"], needs_source_language=False, n_best=1, max_pieces=9,
    count_pieces=lambda sentences: [1] * len(sentences), translate=translate,
)
listener = bind("127.0.0.1", 0)
say = lambda line: print(line, flush=True)
say(f"left {serve(Server({'m': model}), listener, float(sys.argv[1]), say)}")
"""


@pytest.fixture
def start():
    """Starts a server that drains for so many seconds; gives the process and its URL."""
    started = []

    def start(drain=20):
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(drain)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        words = process.stdout.readline().split()
        assert words[:3] == ["Serving", "m", "at"]
        return process, words[3]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def ask(url, *sentences):
    """Status and answer of a request."""
    body = json.dumps({"sentences": sentences, "to": "en"}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}v1/translate", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def ask_in_thread(url, *sentences):
    answers = []

    def target():
        with contextlib.suppress(ConnectionError):  # of a server that ended at once
            answers.append(ask(url, *sentences))

    thread = threading.Thread(target=target)
    thread.start()
    return thread, answers


def test_sigterm_finishes_what_is_at_hand(start):
    process, url = start()
    assert ask(url, "0")[0] == 200
    assert process.stdout.readline() == "translates 1\n"
    thread, answers = ask_in_thread(url, "0.5")
    assert process.stdout.readline() == "translates 1\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline().startswith("SIGTERM: answering open requests")
    assert ask(url, "0")[0] == 503
    thread.join()
    ((status, answer),) = answers
    assert (status, answer["translations"][0][0]["text"]) == (200, "0.5")
    assert process.stdout.readline() == "left 0\n"
    assert process.wait(20) == 0
    with pytest.raises(ConnectionRefusedError), socket.create_connection(_address(url), 5):
        pass


def test_sigterm_is_heard_though_nobody_reads_the_report(start):
    process, url = start()
    assert ask(url, "0")[0] == 200
    process.stdout.close()
    process.send_signal(signal.SIGTERM)
    process.wait(20)


def test_what_takes_too_long_is_counted(start):
    process, url = start(drain=0.1)
    thread, answers = ask_in_thread(url, "2")
    assert process.stdout.readline() == "translates 1\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline().startswith("SIGINT: ")
    assert process.stdout.readline() == "left 1\n"
    thread.join()
    assert [status for status, _ in answers] == [200]  # within the time that sending may take


def test_a_second_signal_ends_at_once(start):
    process, url = start()
    ask_in_thread(url, "5")
    assert process.stdout.readline() == "translates 1\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline().startswith("SIGTERM: ")
    process.send_signal(signal.SIGTERM)
    assert process.wait(2) == 128 + signal.SIGTERM


def test_a_client_that_hangs_up_is_forgotten(start):
    process, url = start()
    assert ask(url, "0")[0] == 200
    assert process.stdout.readline() == "translates 1\n"
    busy, _ = ask_in_thread(url, "0.5")
    assert process.stdout.readline() == "translates 1\n"
    body = b'{"sentences": ["3"], "to": "en"}'
    head = f"POST /v1/translate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(_address(url)) as client:
        client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        time.sleep(0.1)
    busy.join()
    start_time = time.monotonic()
    assert ask(url, "0")[0] == 200
    assert time.monotonic() - start_time < 2  # nobody translates the 3 seconds
    assert 'status="499"} 1.0' in urllib.request.urlopen(f"{url}metrics").read().decode()


def test_an_address_that_is_taken():
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1, port {port} .*in use.*give another --host"):
            bind("127.0.0.1", port)
    with pytest.raises(OSError, match=r"Cannot listen on no\.such\.host\.invalid, port 80 "):
        bind("no.such.host.invalid", 80)


def _address(url):
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    return host, int(port)
