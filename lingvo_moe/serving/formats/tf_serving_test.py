"""The layout, the warm-up requests and the client, against a server that answers as documented."""

import contextlib
import http.client
import http.server
import io
import json
import math
import socket
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from lingvo_moe.serving import client_tf_serving
from lingvo_moe.serving.exported import Exported
from lingvo_moe.serving.formats.tf_serving import WARM_UP, TFServing
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
        monkeypatch.setattr(sys, "argv", ["translate.py", f"--url={url}", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        monkeypatch.setattr(client_tf_serving, "ABOUT", exported / "about.json")
        client_tf_serving.main()
        return capsysbinary.readouterr()

    return run


def test_the_client_prints_the_model_s_translations(exported, server, call):
    out, err = call("--batch_tokens=24", stdin="\r\n".join(LINES).encode())
    model = Exported(exported / "1")
    expected = model.translate(LINES, warn=pytest.fail)
    assert out.decode() == "".join(f"{best[0].text}\n" for best in expected)
    assert not err
    names = {body["signature_name"] for body in server.bodies}
    assert names == {"count_pieces", "serving_default"}
    asked = [b["inputs"]["sentences"] for b in server.bodies if "sentences" in b["inputs"]]
    sizes = [max(model.count_pieces(batch)) * len(batch) for batch in asked if len(batch) > 1]
    assert max(sizes) <= 24


def test_options_and_scores(exported, server, call):
    model = Exported(exported / "1")
    expected = model.translate(LINES[:2], "en", n_best=2, min_length=7, forbidden=("dog",))
    given = ("--n_best=2", "--set=min_length=7", "--set=forbidden=['dog']")
    out = call(*given, *LINES[:2]).out.decode()
    assert out == "".join(f"{t.score:.4f}\t{t.text}\n" for best in expected for t in best)
    *_, body = server.bodies
    assert body["signature_name"] == "with_options"
    assert (body["inputs"]["beam_size"], body["inputs"]["target_prefix"]) == (4, "")
    score, text = call("--scores", "kara").out.decode().split("\t")
    (((best),),) = model.translate(["kara"])
    assert (text, float(score)) == (f"{best.text}\n", round(best.score, 4))


def test_tokens_and_fewer_translations_than_asked_for(exported, call):
    """One token is allowed, </s>, so there is one translation."""
    given = {"length_ratio": 0.0, "length_offset": 1, "n_best": 2}
    arguments = [f"--set={name}={value}" for name, value in given.items() if name != "n_best"]
    out = call("--tokens", "--n_best=2", *arguments, "kara mi").out.decode()
    rows = [json.loads(line) for line in out.splitlines()]
    ((first, second),) = Exported(exported / "1").translate(["kara mi"], tokens=True, **given)
    assert [token["text"] for token in rows[0]["tokens"]] == ["</s>"]
    assert rows[0]["source"] == list(first.source)
    assert rows[0]["tokens"][0]["source"] == first.tokens[0].source
    np.testing.assert_allclose(rows[0]["tokens"][0]["log_prob"], first.tokens[0].log_prob, 1e-4)
    assert (second.score, rows[1]["score"]) == (-math.inf, None)


def test_scores_of_given_translations(exported, server, call, tmp_path):
    sources, targets = ["kara mi", "", "mi " * 40], ["so\u2028ra", "ti", ""]
    (tmp_path / "targets").write_text("".join(f"{target}\n" for target in targets))
    out = call(f"--score={tmp_path / 'targets'}", "--batch_tokens=1", *sources).out.decode()
    rows = [line.split("\t") for line in out.split("\n")[:-1]]
    assert [row[1] for row in rows] == targets
    expected = [score.log_prob for score in Exported(exported / "1").score(sources, targets)]
    np.testing.assert_allclose([float(row[0]) for row in rows], expected, atol=1e-3)
    names = ["count_pieces", "count_target_pieces", *["score"] * 3]
    assert [body["signature_name"] for body in server.bodies] == names


def test_the_exported_program_needs_only_python(exported, url):
    model = Exported(exported / "1")
    ((best,),) = model.translate(["kara mi"], beam_size=2)
    ours = ("--set=beam_size=2", "--to=en", "kara mi")
    result = run_bare(exported, f"--url={url}", *ours, program="translate.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{best.text}\n"
    modules = "batching client_command console lines literals parts sentences surface translate"
    copied = tuple(f"{name}.py" for name in modules.split())
    assert tuple(sorted(path.name for path in exported.glob("*.py"))) == copied


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to=xx"], r"does not know that language.* \(status 400\)$"),
        (["--name=nothing"], r"Servable not found .* \(status 404\)$"),
        (["--name=other"], "no export of lingvo-moe"),
        (["--set=beam=2"], "'beam'. This export has .*beam_size"),
    ],
)
def test_errors_are_a_line(call, arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        call(*arguments, "kara")
    assert "\n" not in str(error.value)


def test_no_server_is_said(call):
    with pytest.raises(OSError, match=r"http://127.0.0.1:1/v1/.* cannot be reached"):
        call("--url=http://127.0.0.1:1", "kara")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://local host:8501", "InvalidURL"),
        (b"\x00\x00\x12\x04", "BadStatusLine"),  # as of a gRPC port
    ],
)
def test_an_address_or_answer_that_is_not_http_is_a_line(call, url, said):
    with contextlib.ExitStack() as stack:
        if isinstance(url, bytes):
            url = stack.enter_context(_answering(url))
        with pytest.raises(OSError, match=rf"gives no answer in HTTP \({said}: .*REST API"):
            call(f"--url={url}", "kara")


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


def test_a_model_with_other_rules_of_search_has_no_options(tmp_path, monkeypatch):
    monkeypatch.setattr(client_tf_serving, "ABOUT", tmp_path / "about.json")
    about = {"options": {}, "part_pieces": 9, "pairs": [], "forms": {}, "penalties": {}}
    (tmp_path / "about.json").write_text(json.dumps(about))
    for argument in ("--score=/dev/null", "--set=min_length=2", "--tokens"):
        monkeypatch.setattr(sys, "argv", ["translate.py", argument, "kara"])
        with pytest.raises(ValueError, match=r"no options but --n_best.*decoding\.rules"):
            client_tf_serving.main()


# The fields of tensorflow_serving/apis/*.proto that warm-up requests use.
PROTOS = """
name: "warm_up.proto" package: "warm_up" syntax: "proto3"
dependency: "tensorflow/core/framework/tensor.proto"
message_type { name: "PredictionLog"
  field { name: "predict_log" number: 6 type: TYPE_MESSAGE type_name: ".warm_up.PredictLog" } }
message_type { name: "PredictLog"
  field { name: "request" number: 1 type: TYPE_MESSAGE type_name: ".warm_up.PredictRequest" } }
message_type { name: "PredictRequest"
  field { name: "model_spec" number: 1 type: TYPE_MESSAGE type_name: ".warm_up.ModelSpec" }
  field { name: "inputs" number: 2 type: TYPE_MESSAGE label: LABEL_REPEATED
          type_name: ".warm_up.PredictRequest.InputsEntry" }
  nested_type { name: "InputsEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.TensorProto" } } }
message_type { name: "ModelSpec" field { name: "signature_name" number: 3 type: TYPE_STRING } }
"""


def prediction_log_class():
    """The message class PredictionLog."""
    file = text_format.Parse(PROTOS, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.Default()  # has tensor.proto
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("warm_up.PredictionLog"))


def test_the_warm_up_requests(exported):
    """Read with protobuf: for each number of sentences one request without and one with options."""
    records = list(tf.data.TFRecordDataset(str(exported / "1" / WARM_UP)).as_numpy_iterator())
    read = prediction_log_class().FromString
    requests = [read(one).predict_log.request for one in records]
    names = [request.model_spec.signature_name for request in requests]
    assert names == ["serving_default", "with_options"] * 3
    options = json.loads((exported / "about.json").read_text())["options"]
    model = tf.saved_model.load(str(exported / "1"))
    for request, count in zip(requests, (1, 1, 8, 8, 32, 32), strict=True):
        inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
        assert inputs["sentences"].tolist() == [b"a b c d e f g h"] * count
        assert inputs["target_language"] == b"en"
        signature = model.signatures[request.model_spec.signature_name]
        specs = signature.structured_input_signature[1]
        assert inputs.keys() == specs.keys()
        for name, spec in specs.items():
            assert spec.dtype == request.inputs[name].dtype
            assert spec.shape.is_compatible_with(inputs[name].shape)
            if name in options:
                assert plain(inputs[name].tolist()) == options[name]
    given = {name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()}
    assert signature(**given)["translations"].shape == [32, 1]
