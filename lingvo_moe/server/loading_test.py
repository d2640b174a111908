"""Logdirs and exports behind a server translate as lingvo-moe-translate does, to the byte."""

import asyncio
import itertools
import json
import re
import threading

import numpy as np
import pytest

import lingvo_moe as lm
from lingvo_moe.inference.scorer import Scorer
from lingvo_moe.jobs.evaluation import load_translator
from lingvo_moe.runtimes.local import Local
from lingvo_moe.server.loading import load, load_all, split_name
from lingvo_moe.server.model import Served, TooLong
from lingvo_moe.server.params import ServerParams
from lingvo_moe.serving.formats.saved_model import SavedModel
from lingvo_moe.system.lines import is_blank
from lingvo_moe.testing import served
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir

LINES = [
    "kara mi", "ka\u2028ra", "mi\x85ra", "ti\x0cra so", "ka\x0bra", "a\x1cb\x1dc\x1ed", "mi\rra",
    "", "\u3000", "\u200b", "\ufeff", "<b>&amp;", "kara " * 30, "mira",
]  # fmt: skip
SMALL = (*SMALLEST, "input.source_length=24")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return random_logdir(tmp_path_factory.mktemp("model"), SMALL)


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)])
def models(model_dir, request):
    """A logdir and, as the slow case, an export too."""
    texts, export = [f"logdir={model_dir.path}"], model_dir.path / "export"
    if request.param:
        SavedModel().export(model_dir.with_overrides(["decoding.n_best=2"]), export)
        texts.append(str(export))
    return load_all(texts, ServerParams(n_best=3, beam_size=8, max_output_tokens=50))


def test_what_they_say_of_themselves(model_dir, models):
    assert list(models) == ["logdir", "export"][: len(models)]
    for model in models.values():
        assert list(model.languages) == sorted(model_dir.tags)
        assert tuple(model.pairs) == model_dir.pairs
        assert (model.n_best, model.max_pieces) == (3, 94)
        assert not model.needs_source_language
        lines = [line for line in LINES if len(line.splitlines()) < 2]
        ids = model_dir.vocabulary("source").encode(lines)
        counts = [0 if is_blank(line) else len(i) for line, i in zip(lines, ids, strict=True)]
        assert [(size.pieces, size.left_out) for size in model.measure(lines)] == [
            (count, 0) for count in counts
        ]


def test_alone_and_together_as_the_translator(model_dir, models):
    translator, _ = load_translator(model_dir, Local(model_dir.task))
    expected = [best[0].text for best in translator(LINES, "en", warn=lambda line: None)]
    assert any(len(text) > 3 for text in expected)

    async def ask(http, name, *sentences):
        question = {"model": name, "sentences": sentences, "to": "en"}
        answer = (await http.post("/v1/translate", json=question)).json()
        return [best[0]["text"] for best in answer["translations"]], answer["left_out"]

    async def test(client):
        http = client.http
        for name in models:
            together, left_out = await ask(http, name, *LINES)
            alone = await asyncio.gather(*(ask(http, name, line) for line in LINES))
            assert together == expected
            assert [texts[0] for texts, _ in alone] == expected
            assert [count[0] for _, count in alone] == left_out
            assert not any(left_out)

    served.run(test, models=models)


OPTIONS = [
    ({"n_best": True}, "n_best must be of type int, got True"),
    ({"n_best": 4}, "n_best must be 1 to 3.*, got 4; give a smaller value"),
    ({"beam_size": 9}, "beam_size must be 1 to 8 on this server, got 9; give"),
    ({"length_penalty": 10**400}, "length_penalty must be 0 to 10, got 1000"),
    ({"length_ratio": 1e30}, r"length_ratio must be 0 to 100, got 1e\+30"),
    ({"length_offset": 10**9}, "length_offset must be 1 to 100000, got 1000000000"),
    ({"target_prefix": "a\nb"}, "target_prefix must be one line without control characters"),
    ({"target_prefix": "\ud800"}, "target_prefix must be one line without control characters"),
    ({"target_prefix": "mi " * 30}, r"target_prefix has \d+ tokens, and at most 22 are allowed"),
    ({"source_prefix": "mi " * 30}, r"source_prefix has \d+ tokens, and at most 11 are"),
    ({"batch_tokens": 9}, "Unknown field 'batch_tokens'"),
    ({"sampling": {"heat": 2}}, "Sampling has no field 'heat'"),
    ({"sampling": {"temperature": 0}}, "temperature must be > 0, got 0"),
]


LONG = "mi kara. " * 10


def rounded(value):
    """JSON with fewer digits: the graphs of a logdir and of an export round differently."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 3) if isinstance(value, float) else value


@pytest.mark.slow
def test_options_of_a_request(model_dir, models):
    given = {
        "n_best": 2,
        "target_prefix": "the one ",
        "source_prefix": "ti ",
        "tokens": True,
        "sampling": {"seed": 3},
    }

    async def test(client):
        http = client.http

        async def ask(**fields):
            question = {"sentences": ["mi kara", ""], "to": "en"} | fields
            content, kind = json.dumps(question), {"Content-Type": "application/json"}
            return await http.post("/v1/translate", content=content, headers=kind)

        for name, (options, message) in itertools.product(models, OPTIONS):
            answer = await ask(model=name, **options)
            assert answer.status_code == 422
            assert re.search(message, answer.json()["error"]), answer.json()
        for name in models:
            long = {"model": name, "sentences": [LONG, "mi"]}
            split = (await ask(**long, tokens=True)).json()
            assert split["left_out"] == [0, 0]
            assert "".join(split["translations"][0][0]["source"]) == "▁mi▁kara<0x2E>" * 10
        return [(await ask(model=name, **given)).json()["translations"] for name in models]

    answer, *exported = served.run(test, models=models)
    assert all(rounded(other) == rounded(answer) for other in exported)
    loaded = lm.load(model_dir.path)
    expected = loaded.translate(["mi kara", ""], "en", **given)
    none = {"tokens": [], "source": []}  # of the blank sentence
    fields = [[none | t.as_json() for t in best] for best in expected]
    assert answer == json.loads(json.dumps(fields))
    for translation in answer[0]:
        assert translation["text"].startswith("the one")
        assert "".join(translation["source"]) == "▁ti▁mi▁kara"
        assert [token["text"] for token in translation["tokens"]][-1] == "</s>"
    small = loaded.translate(["mi kara", "so"] * 2, "en", batch_tokens=1, **given)
    for best, other in zip(small[::2], expected[:1] * 2, strict=True):
        assert [t.text for t in best] == [t.text for t in other]
    assert answer[1] == [none | {"text": "", "score": 0.0}] * 2


# With the tag and EOS the model reads 24 tokens of ONE, and the fixture allows translations of 50.
ONE = "kara mi " * 5 + "mi mi"
TOO_LONG = [
    ({"length_ratio": 1.7}, r"length_ratio=1.7 and length_offset=10 .* sentence 2 may have 51 "),
    ({"length_offset": 39}, "length_offset=39 .* 51 tokens, but at most 50 are allowed; give"),
    ({"length_offset": 10**5, "min_length": 10**9}, "sentence 1 may have 100,0.. tokens"),
    ({"length_ratio": 100}, "length_ratio=100 "),
]


def test_options_cannot_ask_for_translations_of_any_length(models):
    for model in models.values():
        assert model.measure(["", ONE])[0].longest == 0
        assert model.measure([ONE])[0].longest == 22  # 0.5 · 24 + 10
        assert model.measure([ONE], length_offset=38)[0].longest == 50
        (split,) = model.measure([LONG])
        assert (split.pieces, split.longest) == (50, 140)  # of 10 parts; each 0.5 · (5 + 2) + 10
        with pytest.raises(TooLong, match="may have 150 tokens, but at most 140 are allowed"):
            model.measure([LONG], length_offset=11)
        assert model.measure(["mi"], length_ratio=5, min_length=10**9)[0].longest <= 50
        for options, message in TOO_LONG:
            with pytest.raises(TooLong, match=message):
                model.measure(["mi", ONE], **options)


def test_the_model_s_own_lengths_are_allowed(model_dir):
    model = load(model_dir.path, ServerParams(max_output_tokens=1))
    assert model.measure([ONE])[0].longest == 22
    with pytest.raises(TooLong, match="may have 23 tokens, but at most 22 are allowed"):
        model.measure([ONE], length_offset=11)


def test_other_clients_are_answered_while_options_are_checked(models, monkeypatch):
    begun, answered = threading.Event(), threading.Event()
    measure = Served.measure

    def slow(model, sentences, **options):
        if options:
            begun.set()
            assert answered.wait(10)
        return measure(model, sentences, **options)

    async def test(client):
        http = client.http
        question = {"sentences": ["mi"], "to": "en"}
        asking = asyncio.create_task(http.post("/v1/translate", json=question | {"beam_size": 1}))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        assert (await http.get("/health")).status_code == 200
        assert (await http.post("/v1/translate", json=question)).status_code == 200
        answered.set()
        assert (await asking).status_code == 200

    monkeypatch.setattr(Served, "measure", slow)
    served.run(test, models=models)


@pytest.mark.slow
def test_an_explanation_has_the_score_and_the_experts(model_dir, models):
    model = models["logdir"]
    ((best, *_),) = model.translate(["kara mi"], "en", source_language=None, n_best=3)
    (one, other) = model.explain(["kara mi", "mira"], [best.text, "a b c"], "en")
    (alone,) = model.explain(["kara mi"], [best.text], "en")
    assert model.explain([], [], "en") == []
    # Without the tag and the ends; the target's vocabulary has shorter pieces for source text.
    texts = ["mira mi kara so", "kara mi"], ["mira mi kara so", best.text]
    for name in models:
        one_text, sizes = models[name].sizes(*texts)
        assert one_text[0] < one_text[1]
        assert sizes == (len(one.source) - 2, len(one.target) - 1)
    first, *pieces, last = (token.text for token in one.source)
    assert (first, "".join(pieces), last) == ("<2en>", "▁kara▁mi", one.target[-1].text)
    runtime = Local(model_dir.task)
    runtime.restore(model_dir.read_checkpoint().tensors)
    (score,) = Scorer(model_dir, runtime.score)(["kara mi"], [best.text], "en")
    np.testing.assert_allclose([t.log_prob for t in one.target], score.token_log_probs, atol=1e-4)
    for token, same in zip(one.source + one.target, alone.source + alone.target, strict=True):
        (layer,) = token.experts
        experts, weights = zip(*token.experts[layer], strict=True)
        assert layer == ("encoder/layer_00" if token in one.source else "decoder/layer_00")
        assert set(experts) <= set(range(16))
        assert len(set(experts)) == len(experts) <= 2
        assert all(0 < weight <= 1 for weight in weights)
        assert [e for e, _ in same.experts[layer]] == list(experts)
    assert len(other.target) > 1


def test_what_is_no_model(tmp_path):
    with pytest.raises(
        ValueError, match=r"is no model: it has neither the model\.json of a logdir"
    ):
        load(tmp_path, ServerParams())
    with pytest.raises(ValueError, match="Several models have the name same; give names"):
        load_all([f"same={tmp_path}", f"same={tmp_path}/other"], ServerParams())


def test_names(tmp_path):
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert split_name(f"moe={tmp_path}") == ("moe", tmp_path)
    assert split_name(str(odd)) == ("a=b", odd)
    assert split_name(f"moe={odd}") == ("moe", odd)
    for text in ("=", "moe=", f"={tmp_path}"):
        with pytest.raises(ValueError, match="write it as NAME=DIR"):
            split_name(text)
