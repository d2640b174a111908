"""The layout, the warm-up requests and the client, against a server that answers as documented."""

import http.server
import io
import json
import sys
import threading

import pytest
import tensorflow as tf

from lingvo_moe.serving import client_tf_serving
from lingvo_moe.serving.exported import Exported
from lingvo_moe.serving.tf_serving import WARM_UP, TFServing, prediction_log
from lingvo_moe.testing.exports import LINES
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir


def test_a_prediction_log_by_hand():
    # Field 6 (predict_log) > 1 (request) > 1 (model_spec) > 3 (signature_name), and 2 (inputs) an
    # entry of 1 (key) and 2 (value): a TensorProto of dtype 3 (int32), without dimensions, 7.
    tensor = b"\x08\x03\x12\x00\x3a\x01\x07"
    entry = b"\x0a\x01n" + b"\x12\x07" + tensor
    spec = b"\x1a\x0fserving_default"
    request = b"\x0a\x11" + spec + b"\x12\x0c" + entry
    log = b"\x0a" + bytes([len(request)]) + request
    assert prediction_log({"n": 7}) == b"\x32" + bytes([len(log)]) + log


def test_long_requests_have_longer_lengths():
    # 300 characters need lengths of two bytes.
    assert b"x" * 300 in prediction_log({"s": "x" * 300})
    assert prediction_log({"s": "x" * 300})[1] & 0x80


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    made = random_logdir(path, [*SMALLEST, "input.source_length=4"])
    assert TFServing().export(made, path / "export") == 1
    return path / "export"


@pytest.fixture(scope="module")
def url(exported):
    """A server of TensorFlow Serving's REST API, for this model alone."""
    model = tf.saved_model.load(str(exported / "1"))
    signature = model.signatures["serving_default"]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
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
            try:
                outputs = signature(**{n: tf.constant(v) for n, v in body["inputs"].items()})
            except tf.errors.InvalidArgumentError as error:
                return 400, {"error": error.message}
            return 200, {"outputs": {n: self.plain(v.numpy()) for n, v in outputs.items()}}

        @staticmethod
        def plain(array):
            decode = array.dtype == object
            return [[s.decode() for s in row] for row in array] if decode else array.tolist()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_the_client_prints_the_model_s_translations(exported, url, monkeypatch, capsysbinary):
    text = "\r\n".join(LINES).encode()
    monkeypatch.setattr(sys, "argv", ["translate.py", f"--url={url}", "--batch_size=4"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    client_tf_serving.main()
    out, err = capsysbinary.readouterr()
    expected = Exported(exported / "1").translate(LINES, warn=lambda line: None)
    assert out.decode() == "".join(f"{best[0].text}\n" for best in expected)
    assert b"line 14 (" in err


@pytest.mark.parametrize(
    ("name", "to", "message"),
    [
        ("translator", "xx", r"does not know that language.* \(status 400\)$"),
        ("nothing", "en", r"Servable not found .* \(status 404\)$"),
        ("other", "en", r"is no export of lingvo-moe: its answer"),
    ],
)
def test_errors_are_a_line(url, name, to, message):
    with pytest.raises(ValueError, match=message) as error:
        client_tf_serving.predict(url, name, ["kara"], {"target_language": to})
    assert "\n" not in str(error.value)


def test_no_server_is_said():
    with pytest.raises(OSError, match=r"http://127.0.0.1:1/v1/.* cannot be reached"):
        client_tf_serving.predict("http://127.0.0.1:1", "translator", ["kara"], {})


def test_the_layout(exported):
    assert (exported / "1" / "saved_model.pb").is_file()
    records = list(tf.data.TFRecordDataset(str(exported / "1" / WARM_UP)).as_numpy_iterator())
    inputs = {"sentences": ["a b c d e f g h"] * 8, "target_language": "en"}
    assert len(records) == 3
    assert records[1] == prediction_log(inputs)
    assert "from lingvo_moe" not in (exported / "translate.py").read_text()
