import pytest

from lingvo_moe.data.distinct import estimate, least, least_of
from lingvo_moe.data.prepare_pair import hashes


def test_texts_of_several_parts_count_once():
    texts = [f"text {number}" for number in range(20_000)]
    parts = [least(hashes(texts[start : start + 8_000])) for start in (0, 6_000, 12_000)]
    assert least_of(parts) == least(hashes(texts))
    assert estimate(least_of(parts)) == pytest.approx(20_000, rel=0.3)
    assert estimate(parts[0]) == pytest.approx(8_000, rel=0.3)


def test_few_are_counted():
    assert estimate(least(hashes(["a", "b", "a"]))) == 2
    assert estimate(least(hashes([]))) == 0
