"""The page in headless Chromium, in front of a model that writes markup."""

import asyncio
import math
import threading
import types

import pytest
import uvicorn

from lingvo_moe.inference.scorer import Score
from lingvo_moe.inference.translator import Translation
from lingvo_moe.jobs.model import Explanation, RoutedToken
from lingvo_moe.server.app import Server
from lingvo_moe.server.model import Size
from lingvo_moe.server.run import bind, url
from lingvo_moe.testing.browser import CHROMIUM, browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
HOSTILE = "<img src=x onerror='window.hacked = 1'><script>window.hacked = 1</script>"


def _translate(sentences, to, *, source_language, n_best):
    del source_language
    if "wrong" in sentences:
        raise ValueError(f"No. {HOSTILE}")
    best = [
        [(f"{s} in {to}", -0.25), (f"{s} (2) {HOSTILE}", -1.5), ("", -math.inf)] for s in sentences
    ]
    return [[Translation(*two) for two in row[:n_best]] for row in best]


def _measure(sentences, **options):
    """A piece is a character; at most 100 are read."""
    return [Size(min(len(s), 100), max(0, len(s) - 100), 1) for s in sentences]


def _score(sources, targets, to, *, source_language):
    del sources, to, source_language
    return [Score(-0.5, (text, "</s>"), (-0.5, 0.0)) for text in targets]


def _explain(sources, targets, to, *, source_language):
    del to, source_language
    return [
        Explanation(
            [RoutedToken(s, None, {"encoder/layer_01": [(3, 0.75), (7, 0.25)]})],
            [
                RoutedToken(t, math.log(0.5), {"decoder/layer_01": [(5, 1.0)]}),
                RoutedToken(HOSTILE, math.log(0.999), {"decoder/layer_01": []}),
            ],
        )
        for s, t in zip(sources, targets, strict=True)
    ]


def _sizes(sources, targets):
    return [tuple(map(len, pair)) for pair in zip(sources, targets, strict=True)]


def _model(**changes):
    fields = {
        "languages": ["de", "en"],
        "pairs": ["fr-en", "it-en"],
        "n_best": 3,
        "max_pieces": 100,
    }
    fields |= {"needs_source_language": False, "translate": _translate, "explain": _explain}
    fields |= {"measure": _measure, "sizes": _sizes, "score": _score}
    fields |= {"options": ["n_best"]}
    return types.SimpleNamespace(**fields | changes)


@pytest.fixture(scope="module")
def address():
    """The URL of a server in a thread."""
    two = _model(needs_source_language=True, languages=["it"], explain=None)
    imported = _model(needs_source_language=True, pairs=[])
    models = {"one": _model(), "two": two, "imported": imported}
    config = uvicorn.Config(Server(models).asgi, log_level="warning", lifespan="on")
    server = uvicorn.Server(config)
    with bind("127.0.0.1", 0) as listener:
        address = url(listener)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        yield address
        server.should_exit = True
        thread.join()


@pytest.fixture
def page(address, tmp_path):
    with browser(tmp_path / "profile") as page:
        page.open(address)
        page.wait_for("document.getElementById('to').options.length > 0")
        yield page


def _ask(page, text, n_best=1):
    page.run(f"document.getElementById('text').value = {text!r}")
    page.run(f"document.getElementById('n-best').value = {n_best}")
    page.run("document.getElementById('go').click()")
    page.wait_for("!document.getElementById('go').disabled")


def _texts(page, selector):
    return page.run(f"[...document.querySelectorAll('{selector}')].map((e) => e.innerText)")


def test_type_choose_and_see(page):
    assert page.run("document.getElementById('to').value") == "en"
    assert _texts(page, "#source option") == ["any language", "fr", "it"]
    _ask(page, "un\ndeux" + "x" * 100 + "\n\n", n_best=3)
    long = "deux" + "x" * 100
    assert _texts(page, ".source") == ["un", long]
    assert _texts(page, ".translation .text") == [
        "un in en", f"un (2) {HOSTILE}", f"{long} in en", f"{long} (2) {HOSTILE}",
    ]  # fmt: skip
    assert _texts(page, ".score") == ["-0.250", "-1.500"] * 2
    assert _texts(page, ".warning") == ["too long: the last 4 tokens were not read"]
    page.run("document.getElementById('to').value = 'de'")
    _ask(page, "un")
    assert _texts(page, ".translation .text") == ["un in de"]


def test_tokens_and_experts(page):
    _ask(page, "un")
    page.run("document.querySelector('.translation button').click()")
    page.wait_for("document.querySelectorAll('.tokens table').length === 2")
    assert _texts(page, ".piece") == ["un in en", HOSTILE]
    written, read = ("table:nth-of-type(1)", "table:nth-of-type(2)")
    assert _texts(page, f"{written} th") == ["token", "probability", "decoder/layer_01"]
    assert _texts(page, f"{written} tbody tr:first-child td") == ["un in en", "50.0 %", "5 (1.00)"]
    assert _texts(page, f"{read} th") == ["token", "encoder/layer_01"]
    assert _texts(page, f"{read} tbody td") == ["un", "3 (0.75), 7 (0.25)"]
    colors = page.run(
        "[...document.querySelectorAll('.piece')].map((e) => getComputedStyle(e).backgroundColor)"
    )
    assert len(set(colors)) == 2
    page.run("document.querySelector('.translation button').click()")
    page.wait_for("document.querySelectorAll('.tokens table').length === 0")


def test_markup_is_text(page):
    _ask(page, HOSTILE, n_best=2)
    assert _texts(page, ".source") == [HOSTILE]
    page.run("document.querySelector('.translation button').click()")
    page.wait_for("document.querySelectorAll('.tokens table').length === 2")
    _ask(page, "wrong")
    assert _texts(page, "#error") == [f"No. {HOSTILE}"]
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.run("window.hacked === undefined")
