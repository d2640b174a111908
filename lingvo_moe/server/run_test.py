"""A server as a process of its own, with real sockets and signals.

Its model answers the sentence "wait", and measures the sentence "count", only after a line on its
standard input.
"""

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest

from lingvo_moe.server.run import bind
from lingvo_moe.testing.waiting import wait_until

_PROGRAM = """
import sys, types
from lingvo_moe.server.app import Server
from lingvo_moe.server.model import Size
from lingvo_moe.server.params import ServerParams
from lingvo_moe.server.run import bind, serve
def translate(sentences, to, **rest):
    print("translates", *sentences, flush=True)
    if "wait" in sentences:
        sys.stdin.readline()
    return [[types.SimpleNamespace(as_json=lambda tokens, s=s: {"text": s})] for s in sentences]

def measure(sentences):
    if "count" in sentences:
        print("measures", flush=True)
        sys.stdin.readline()
    return [Size(1, 0, 1)] * len(sentences)

model = types.SimpleNamespace(
    languages=["en"], pairs=["de-en"], needs_source_language=False, n_best=1, max_pieces=9,
    measure=measure, translate=translate, options=("n_best",),
)
listener = bind("127.0.0.1", 0)
say = lambda line: print(line, flush=True)
drain, timeout = map(float, sys.argv[1:])
serve(Server({"m": model}, ServerParams(timeout=timeout)), listener, drain, say)
"""


@pytest.fixture
def start():
    """Starts a server with these seconds and open files; gives the process and its URL."""
    started = []

    def start(drain=60, timeout=60, files=1024):
        program = [sys.executable, "-c", _PROGRAM, str(drain), str(timeout)]
        process = subprocess.Popen(
            ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        words = process.stdout.readline().split()
        assert words[:3] == ["Serving", "m", "at"]
        return process, words[3]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def ask(url, *sentences):
    """Status and answer of a request."""
    body = json.dumps({"sentences": sentences, "to": "en"}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}v1/translate", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def ask_in_thread(url, *sentences):
    answers = []

    def target():
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):  # of its end
            answers.append(ask(url, *sentences))

    thread = threading.Thread(target=target)
    thread.start()
    return thread, answers


def text_of(answer):
    """The only translation of an answer with status 200."""
    status, fields = answer
    assert status == 200, answer
    ((best,),) = fields["translations"]
    return best["text"]


def go_on(process):
    """Lets the model answer."""
    process.stdin.write("\n")
    process.stdin.flush()


def test_sigterm_loses_no_request(start):
    """Those that wait are answered; those that only just arrive are answered, or refused."""
    process, url = start()
    busy, answers = ask_in_thread(url, "wait")
    assert process.stdout.readline() == "translates wait\n"
    waiting = [ask_in_thread(url, f"s{n}") for n in range(10)]
    _wait_for(url, 'lingvo_moe_waiting_sentences{model="m"} 10.0')
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(_address(url))) for _ in range(20)]
        for number, client in enumerate(clients):
            body = json.dumps({"sentences": [f"t{number}"], "to": "en"}).encode()
            client.sendall(_request(body))
        process.send_signal(signal.SIGTERM)
        go_on(process)
        busy.join()
        assert [text_of(answer) for answer in answers] == ["wait"]
        for number, (thread, answers) in enumerate(waiting):
            thread.join()
            assert [text_of(answer) for answer in answers] == [f"s{number}"]
        for number, client in enumerate(clients):
            response = http.client.HTTPResponse(client)
            response.begin()
            answer = response.status, json.loads(response.read())
            refused = (503, {"error": "The server is shutting down; use another one."})
            assert answer == refused or text_of(answer) == f"t{number}"
            assert response.will_close
    assert process.wait(60) == 0


def test_sigterm_resets_no_connection_of_busy_clients(start):
    """Each sends requests one after another, on one connection while the server lets it."""
    process, url = start()
    errors, refused = [], []

    def ask_again_and_again():
        while True:
            client = http.client.HTTPConnection(*_address(url))
            try:
                client.connect()
            except ConnectionRefusedError:
                return
            closed = False
            while not closed:
                try:
                    client.request("POST", "/v1/translate", body, headers)
                    answer = client.getresponse()
                    answer.read()
                except OSError as error:
                    errors.append(error)
                    return
                closed = answer.will_close
                refused.append(answer.status == 503)

    body = json.dumps({"sentences": ["a"], "to": "en"})
    headers = {"Content-Type": "application/json"}
    clients = [threading.Thread(target=ask_again_and_again) for _ in range(24)]
    for client in clients:
        client.start()
    _wait_for(url, 'lingvo_moe_requests_total{path="/v1/translate",status="200"}')
    process.send_signal(signal.SIGTERM)
    for client in clients:
        client.join()
    # A handshake may be completed between the last accept and the close.
    assert len(errors) <= 1
    assert any(refused)
    assert process.wait(60) == 0


def test_sigterm_is_heard_though_nobody_reads_the_report(start):
    process, url = start()
    assert ask(url, "a")[0] == 200
    process.stdout.close()
    process.send_signal(signal.SIGTERM)
    process.wait(60)


@pytest.mark.parametrize("what", ["wait", "count"])
def test_what_takes_too_long_is_counted(start, what):
    """The process ends though its thread still computes."""
    process, url = start(drain=0.1)
    thread, answers = ask_in_thread(url, what)
    assert process.stdout.readline() in ("translates wait\n", "measures\n")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline().startswith("SIGINT: ")
    assert process.stdout.readline() == ("error: 1 requests were left unanswered; see --drain.\n")
    assert process.wait(30) == 1
    thread.join()
    assert answers == [
        (503, {"error": "The server shut down before the answer; ask another server."})
    ]


def test_a_batch_that_nobody_waits_for_is_not_waited_for(start):
    process, url = start()
    body = b'{"sentences": ["wait"], "to": "en"}'
    with socket.create_connection(_address(url)) as client:
        client.sendall(_request(body))
        assert process.stdout.readline() == "translates wait\n"
    _wait_for(url, 'status="499"} 1.0')
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_a_second_signal_ends_at_once(start):
    process, url = start()
    ask_in_thread(url, "wait")
    assert process.stdout.readline() == "translates wait\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline().startswith("SIGTERM: ")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM  # though the model still waits


def test_sigterm_does_not_wait_for_a_body(start):
    process, url = start()
    with socket.create_connection(_address(url)) as client:
        client.sendall(_request(b'{"sentences": ["a"], "to": "en"}')[:-9])
        assert ask(url, "b")[0] == 200
        process.send_signal(signal.SIGTERM)
        response = http.client.HTTPResponse(client)
        response.begin()
        assert response.status == 503
        assert json.load(response) == {"error": "The server is shutting down; use another one."}
    assert process.wait(30) == 0


def _request(body):
    """The bytes of a request to translate."""
    head = f"POST /v1/translate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\n\r\n" + body


def _wait_for(url, line):
    """Until the metrics have such a line."""
    metrics = f"{url}metrics"
    wait_until(
        lambda: line in urllib.request.urlopen(metrics).read().decode(), f"{line} in metrics"
    )


def test_an_address_that_is_taken():
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1, port {port} .*in use.*give another --host"):
            bind("127.0.0.1", port)
    with pytest.raises(OSError, match=r"Cannot listen on 192\.0\.2\.1, port 80 "):
        bind("192.0.2.1", 80)  # reserved for documentation: of no machine


def _address(url):
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    return host, int(port)
