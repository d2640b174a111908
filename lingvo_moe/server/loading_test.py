"""Logdirs and exports behind a server translate as lingvo-moe-translate does, to the byte."""

import asyncio

import httpx
import numpy as np
import pytest

from lingvo_moe.runtimes.local import Local
from lingvo_moe.server.app import Server
from lingvo_moe.server.loading import Trained, load, load_all, split_name
from lingvo_moe.serving.export import export_saved_model
from lingvo_moe.tasks.evaluation import load_translator
from lingvo_moe.tasks.scorer import Scorer
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir

LINES = [
    "kara mi", "ka\u2028ra", "mi\x85ra", "ti\x0cra so", "ka\x0bra", "a\x1cb\x1dc\x1ed", "mi\rra",
    "", "\u3000", "\u200b", "\ufeff", "<b>&amp;", "kara " * 30, "mira",
]  # fmt: skip
SMALL = (*SMALLEST, "input.source_length=6")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return random_logdir(tmp_path_factory.mktemp("model"), SMALL)


@pytest.fixture(scope="module")
def models(model_dir):
    export_saved_model(model_dir.with_overrides(["decoding.n_best=2"]), model_dir.path / "export")
    texts = [f"logdir={model_dir.path}", str(model_dir.path / "export")]
    return load_all(texts, n_best=3)


def test_what_they_say_of_themselves(model_dir, models):
    assert list(models) == ["logdir", "export"]
    for model, n_best in zip(models.values(), (3, 2), strict=True):
        assert list(model.languages) == sorted(model_dir.tags)
        assert tuple(model.pairs) == model_dir.pairs
        assert (model.n_best, model.max_pieces) == (n_best, 22)
        assert not model.needs_source_language
        counts = [len(ids) for ids in model_dir.vocabulary("source").encode(LINES)]
        assert model.count_pieces(LINES) == counts


def test_alone_and_together_as_the_translator(model_dir, models):
    translator, _ = load_translator(model_dir, Local(model_dir.task))
    expected = [best[0].text for best in translator(LINES, "en", warn=lambda line: None)]
    assert any(len(text) > 3 for text in expected)

    async def ask(http, name, *sentences):
        question = {"model": name, "sentences": sentences, "to": "en"}
        answer = (await http.post("/v1/translate", json=question)).json()
        return [best[0]["text"] for best in answer["translations"]], answer["left_out"]

    async def test():
        server = Server(models)
        transport = httpx.ASGITransport(server.asgi)
        async with (
            server.asgi.router.lifespan_context(server.asgi),
            httpx.AsyncClient(transport=transport, base_url="http://test") as http,
        ):
            for name in models:
                together, left_out = await ask(http, name, *LINES)
                alone = await asyncio.gather(*(ask(http, name, line) for line in LINES))
                assert together == expected
                assert [texts[0] for texts, _ in alone] == expected
                assert [count[0] for _, count in alone] == left_out
                assert [bool(count) for count in left_out] == [n == 12 for n in range(14)]

    asyncio.run(test())


def test_an_explanation_has_the_score_and_the_experts(model_dir, models):
    model = models["logdir"]
    ((best, *_),) = model.translate(
        ["kara mi"], "en", source_language=None, n_best=3, warn=lambda line: None
    )
    (one, other) = model.explain(["kara mi", "mira"], [best.text, "a b c"], "en", None)
    (alone,) = model.explain(["kara mi"], [best.text], "en", None)
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
        load(tmp_path, 1)
    with pytest.raises(ValueError, match="Several models have the name same; give names"):
        load_all([f"same={tmp_path}", f"same={tmp_path}/other"], 1)


def test_names(tmp_path):
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert split_name(f"moe={tmp_path}") == ("moe", tmp_path)
    assert split_name(str(odd)) == ("a=b", odd)
    assert split_name(f"moe={odd}") == ("moe", odd)
    for text in ("=", "moe=", f"={tmp_path}"):
        with pytest.raises(ValueError, match="write it as NAME=DIR"):
            split_name(text)


def test_a_model_that_routes_by_source_language(tmp_path):
    random_logdir(tmp_path, [*SMALL, "model.moe.router=ByTask(task='source')"])
    model = load(tmp_path, 1)
    assert isinstance(model, Trained)
    assert model.needs_source_language
    with pytest.raises(ValueError, match="needs to know what it reads"):
        model.translate(["a"], "en", source_language=None, n_best=1, warn=lambda line: None)
