import types

import numpy as np
import pytest

from lingvo_moe.decoding.cache import Flat, Reordered
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.decoding.sampling import Sampling
from lingvo_moe.decoding.shortlist import Shortlist
from lingvo_moe.nn.special_tokens import PAD
from lingvo_moe.testing.slow_search import assert_same, reference_search, request_of, tiny

TAGS = [5, 6]
LANGUAGES = [[10, 12, 14, 30, 31, PAD], [11, 13, 15, 40, 41, 42]]


@pytest.fixture(scope="module")
def model():
    return tiny(vocab_size=100, seed=4)


@pytest.fixture(scope="module")
def shortlist():
    by_piece = np.random.default_rng(0).integers(4, 100, [20, 3]).astype(np.int32)
    by_piece[[PAD, 7, 8]] = PAD
    return Shortlist(by_piece, np.array(LANGUAGES, np.int32), np.array(TAGS, np.int32))


def listed(shortlist, source, prefix):
    """The tokens that a translation may have, by a plain loop."""
    tokens = {0, 1, 2, 3, *prefix, *LANGUAGES[TAGS.index(source[0])]}
    for piece in source:
        tokens |= set(shortlist.by_piece[piece].tolist())
    return sorted(tokens)


def among(model, tokens):
    """The model with a softmax over these tokens alone, for the reference search."""

    def next_log_probs(source, prefixes):
        full = model.next_log_probs(source, prefixes)
        some = np.full_like(full, -np.inf)
        part = full[:, tokens]
        some[:, tokens] = part - np.log(np.exp(part).sum(axis=1, keepdims=True))
        return some

    return types.SimpleNamespace(next_log_probs=next_log_probs)


SOURCES = [[5, 9, 8], [6, 9, 8, 17], [5, 12, 11, 10, 19, 18], [6, 7]]


TEXTS: dict = {"prefix": (77, 9), "forbidden": ((12,), (14, 10), (99, 98))}


@pytest.mark.parametrize(
    ("beam_size", "cache", "texts"),
    [
        (1, Flat(), {}),
        (4, Flat(), TEXTS),
        *[
            pytest.param(*of, marks=pytest.mark.slow)
            for of in [(1, Flat(), TEXTS), (4, Flat(), {}), (4, Reordered(), {})]
        ],
    ],
)
def test_equals_a_search_over_the_listed_tokens(model, shortlist, beam_size, cache, texts):
    search = {"length_ratio": 1.0, "length_offset": 3, "n_best": 3}
    search |= {"beam_size": beam_size, "no_repeat_ngram": 1, "cache": cache}
    request = request_of(**search, **texts, shortlist=True, tokens=True, instance=shortlist)
    together = model.search(SOURCES, request)
    used = set()
    for source, hypotheses in zip(SOURCES, together, strict=True):
        tokens = listed(shortlist, source, texts.get("prefix", ()))
        found = reference_search(among(model, tokens), source, request.params, **texts)
        assert_same(hypotheses[: len(found)], [h for h in found if h[1] > -np.inf])
        assert_same(model.search([source], request, padding=2)[0], hypotheses)
        used |= {i for ids, _ in hypotheses for i in ids}
    assert len(used) > 4
    log_probs, sources = model.output(SOURCES, request)[3:]
    scores = log_probs.sum(axis=2) / request.params.penalty((log_probs != 0).sum(axis=2))
    np.testing.assert_allclose(scores[:, 0], [best[0][1] for best in together], atol=1e-4)
    assert sources.max() < 6


def test_options_of_a_request_are_checked_together():
    """In whatever order they come; fields of sampling that are not given stay as they are."""
    with_shortlist = BeamSearchParams(shortlist=True)
    for options in ({"sampling": {"seed": 7}, "shortlist": False}, {"shortlist": False}):
        assert not with_shortlist.with_options(options).shortlist
    cold = BeamSearchParams(sampling=Sampling(temperature=0.2, top_k=3))
    seeded = cold.with_options({"sampling": {"seed": 7}}).sampling
    assert seeded == Sampling(temperature=0.2, top_k=3, seed=7)
    with pytest.raises(ValueError, match="'sede'"):
        cold.with_options({"sampling": {"sede": 7}})
