"""Formats of corpora: TMX, compression, and files of any bytes."""

import gzip
import importlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lingvo_moe.data.corpora import find_pairs

zstd = importlib.import_module("backports.zstd")
PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstd.compress}

TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header creationtool="x" srclang="en"/><body>
<tu><tuv xml:lang="EN-us"><seg> one &amp;
two </seg></tuv><tuv xml:lang="de"><seg>eins &#38; zwei</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>only</seg></tuv></tu>
<tu><tuv lang="de_AT"><seg>a <bpt i="1">&lt;b></bpt><hi>fett</hi><ept i="1">x</ept> b</seg></tuv>
<tuv xml:lang="de"><seg>second</seg></tuv><tuv xml:lang="en"><seg>bold</seg></tuv></tu>
</body></tmx>
"""


def _pair(directory, name, data):
    path = directory / "train" / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(data)
    return find_pairs(directory)[0]


@pytest.mark.parametrize("suffix", PACK)
def test_tmx(tmp_path, suffix):
    pair = _pair(tmp_path, f"de-en.tmx{suffix}", PACK[suffix](TMX.encode()))
    expected = [("eins & zwei", "one & two"), ("second", "bold")]
    assert list(pair.read("train")) == expected
    assert list(pair.reverse().read("train")) == [line[::-1] for line in expected]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("pt_BR-pt_PT", [("b", "p")]),
        ("pt-pt_BR", [("p", "b")]),  # never one text on both sides
    ],
)
def test_tmx_of_two_variants_of_a_language(tmp_path, name, lines):
    def unit(**texts):
        sides = (
            f'<tuv xml:lang="{code.replace("_", "-")}"><seg>{text}</seg></tuv>'
            for code, text in texts.items()
        )
        return f"<tu>{''.join(sides)}</tu>"

    units = unit(pt_BR="b", pt_PT="p"), unit(pt_BR="b", fr="f"), unit(pt_PT="p", fr="f")
    data = TMX[: TMX.index("<tu>")] + "".join(units) + "</body></tmx>"
    assert list(_pair(tmp_path, f"{name}.tmx", data.encode()).read("train")) == lines


@pytest.mark.parametrize(
    ("wanted", "codes", "found"),
    [
        ("sr_Latn", ("sr-Cyrl-RS", "sr-Latn-RS"), "sr-Latn-RS"),
        ("sr_Latn", ("sr-Cyrl-RS",), None),
        ("sr_Latn", ("sr-RS",), "sr-RS"),
    ],
)
def test_tmx_of_longer_codes(tmp_path, wanted, codes, found):
    sides = "".join(
        f'<tuv xml:lang="{code}"><seg>{code}</seg></tuv>' for code in (*codes, "en", "fr")
    )
    other = '<tu><tuv xml:lang="xx"><seg>x</seg></tuv></tu>'
    data = f"{TMX[: TMX.index('<tu>')]}<tu>{sides}</tu>{other}</body></tmx>"
    pair = _pair(tmp_path, f"{wanted}-en.tmx", data.encode())
    if found:
        assert list(pair.read("train")) == [(found, "en")]
    else:
        with pytest.raises(ValueError, match="sr_latn and en"):
            list(pair.read("train"))


@pytest.mark.parametrize(
    ("segment", "text"),
    [
        ("Click<ph/>here", "Click here"),
        ("पानी<ph/>गरम cafe\u0301<ph/>!", "पानी गरम cafe\u0301!"),
        ("Click<ph>&lt;br/></ph><bpt>b</bpt>here", "Click here"),
        ("a <ph/>b<ph/> c<ph/>.", "a b c."),
        ("<ph/>a<it>x</it>", "a"),
        ("bo<bpt>b</bpt>ld<ept>b</ept>er", "bolder"),
    ],
)
def test_markup_that_stands_alone_parts_words(tmp_path, segment, text):
    data = TMX.replace("second", segment).encode()
    assert list(_pair(tmp_path, "de-en.tmx", data).read("train"))[1][0] == text


def test_tmx_in_another_encoding(tmp_path):
    data = TMX.replace("UTF-8", "UTF-16").encode("utf-16")
    assert len(list(_pair(tmp_path, "de-en.tmx", data).read("train"))) == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            TMX.replace("</seg>", "&nbsp;</seg>", 1),
            "nbsp",
        ),
        (
            TMX.replace("<seg>", "<text>").replace("</seg>", "</text>"),
            "a <seg> of both",
        ),
        (TMX.replace("UTF-8", "klingon"), "well-formed"),
    ],
)
def test_bad_tmx(tmp_path, data, message):
    with pytest.raises(ValueError, match=message):
        list(_pair(tmp_path, "de-en.tmx", data.encode()).read("train"))


@pytest.mark.parametrize("data", [b"plain text", zstd.compress(b"eins\tone\n" * 99)[:-9]])
def test_broken_zstd_names_the_file(tmp_path, data):
    with pytest.raises(ValueError, match="whole zstd"):
        list(_pair(tmp_path, "de-en.tsv.zst", data).read("train"))


def _mutated(content: bytes, places: list[tuple[int, int]]) -> bytes:
    changed = bytearray(content)
    for place, byte in places:
        changed[place % len(changed)] = byte
    return bytes(changed)


_PLACES = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=5)
_CONTENTS = st.one_of(
    st.binary(max_size=80),
    st.text(max_size=40).map(str.encode),
    st.builds(_mutated, st.just(TMX.encode()), _PLACES),
    st.builds(_mutated, st.just(b"eins\tone\nzwei\ttwo\n"), _PLACES),
)


@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    kind=st.sampled_from(["tsv", "tmx", "sides"]),
    suffix=st.sampled_from(sorted(PACK)),
    pack=st.booleans(),
    contents=st.tuples(_CONTENTS, _CONTENTS),
    places=st.none() | _PLACES,
)
def test_files_of_any_bytes_are_read_or_refused_in_one_line(
    tmp_path, kind, suffix, pack, contents, places
):
    for path in (tmp_path / "train").glob("*"):
        path.unlink()
    names = ["de-en.de", "de-en.en"] if kind == "sides" else [f"de-en.{kind}"]
    for name, content in zip(names, contents, strict=False):
        data = PACK[suffix](content) if pack else content
        path = Path(tmp_path, "train", name + suffix)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(_mutated(data, places) if places and data else data)
    refused = None
    try:
        for source, target in find_pairs(tmp_path)[0].read("train"):
            assert "\n" not in source + target
            (source + target).encode()
    except ValueError as error:
        refused = str(error)
    assert refused is None or ("de-en" in refused and refused.isprintable())
