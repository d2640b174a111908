"""The layout, the warm-up requests and the client, against a server that answers as documented."""

import contextlib
import http.client
import http.server
import io
import json
import socket
import sys
import threading

import pytest
import tensorflow as tf

from lingvo_moe.serving import client
from lingvo_moe.serving.exported import Exported
from lingvo_moe.serving.formats.tf_serving import TFServing
from lingvo_moe.testing.exports import LINES, run_bare
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    made = random_logdir(path, [*SMALLEST, "input.source_length=16"])
    assert TFServing().export(made, path / "export") == 1
    return path / "export"


@pytest.fixture(scope="module")
def server(exported):
    """A server of TensorFlow Serving's REST API, for this model alone; it keeps the requests."""
    model = tf.saved_model.load(str(exported / "1"))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.server.bodies.append(body)
            status, answer = self.answer(body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def answer(self, body):
            if self.path == "/v1/models/other:predict":
                return 200, {"predictions": [1, 2]}
            if self.path != "/v1/models/translator:predict":
                return 404, {"error": f"Servable not found for request: {self.path}"}
            signature = model.signatures[body["signature_name"]]
            specs, inputs = signature.structured_input_signature[1], body["inputs"]
            if missing := specs.keys() - inputs.keys():
                return 400, {"error": f"Missing but required: {missing}"}
            try:
                outputs = signature(
                    **{n: tf.constant(v, specs[n].dtype) for n, v in inputs.items()}
                )
            except tf.errors.InvalidArgumentError as error:
                return 400, {"error": error.message}
            values = {n: plain(v.numpy().tolist()) for n, v in outputs.items()}
            return 200, {"outputs": values if len(values) > 1 else next(iter(values.values()))}

        def log_message(self, *_):
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.bodies = []
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()


def plain(values):
    """Nested lists of bytes as texts; TensorFlow Serving too writes -Infinity without quotes."""
    if isinstance(values, list):
        return list(map(plain, values))
    return values.decode() if isinstance(values, bytes) else values


@pytest.fixture
def url(server):
    server.bodies.clear()
    return f"http://127.0.0.1:{server.server_port}"


@pytest.fixture
def call(exported, url, monkeypatch, capsysbinary):
    """The client's standard output and error for arguments and standard input."""

    def run(*arguments, stdin=b""):
        flags = [f"--url={url}", f"--model={exported}"]
        monkeypatch.setattr(sys, "argv", ["translate.py", *flags, *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        client.main()
        return capsysbinary.readouterr()

    return run


@pytest.mark.slow
def test_the_client_prints_the_model_s_translations(exported, server, call):
    out, err = call(stdin="\r\n".join(LINES).encode())
    expected = Exported(exported / "1").translate(LINES, warn=pytest.fail)
    assert out.decode() == "".join(f"{best[0].text}\n" for best in expected)
    assert not err
    names = {body["signature_name"] for body in server.bodies}
    assert names == {"count_pieces", "serving_default"}


@pytest.mark.slow
def test_the_exported_program_needs_only_python(exported, url):
    model = Exported(exported / "1")
    ((best,),) = model.translate(["kara mi"])
    result = run_bare(exported, f"--url={url}", "--to=en", "kara mi", program="translate.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{best.text}\n"
    modules = "batching console languages lines sentences surface translate"
    copied = tuple(f"{name}.py" for name in modules.split())
    assert tuple(sorted(path.name for path in exported.glob("*.py"))) == copied


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to=xx"], "translate into 'xx'"),
        (["--name=nothing"], "Servable not found"),
    ],
)
def test_what_is_refused_is_a_line(call, arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        call(*arguments, "kara")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://local host:8501", b"\x00\x00\x12\x04"]
)
def test_no_answer_names_the_flag(call, url):
    """No server, no address, and bytes as of a gRPC port."""
    with contextlib.ExitStack() as stack:
        if isinstance(url, bytes):
            url = stack.enter_context(_answering(url))
        with pytest.raises(OSError, match="--url"):
            call(f"--url={url}", "kara")
    with pytest.raises(OSError, match="--url"):
        call("--name=other", "kara")  # an answer without outputs


@contextlib.contextmanager
def _answering(content):
    """The address of a server that answers one request with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as request:
                # All of it: a connection that is closed with bytes unread is reset.
                request.readline()
                request.read(int(http.client.parse_headers(request)["Content-Length"]))
                connection.sendall(content)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()
