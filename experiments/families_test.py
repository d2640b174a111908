import numpy as np
import pytest

from experiments import families


def test_families():
    found = families.families()
    assert found["quc"] == found["toj"] == "Mayan"
    assert len(found) == 187


def test_languages_of_a_family_share_experts():
    rng = np.random.default_rng(0)
    labels = np.repeat(["a", "b", "c"], 6)
    by_family = {label: rng.dirichlet(np.ones(8)) for label in "abc"}
    load = np.array([rng.multinomial(1000, by_family[label]) for label in labels])
    inside, outside, p, nearest, chance = families.compare(load, labels)
    assert inside > 0.9 > 0 > outside
    assert p < 0.01
    assert nearest == 1
    assert 0.2 < chance < 0.4  # 5 of 17
    p, nearest = families.compare(load, rng.permutation(labels))[2:4]
    assert p > 0.05
    assert nearest < 0.7
    with pytest.raises(ValueError, match="exactly as the average"):
        families.compare(np.ones((18, 2)), labels)


def test_two_languages_by_hand():
    # Shares minus their mean [0.5, 0.5]: ±[0.1, -0.1] and ±[0.3, -0.3].
    load = np.array([[6, 4], [8, 2], [4, 6], [2, 8]])
    inside, outside, _, nearest, _ = families.compare(load, np.array(["a", "a", "b", "b"]))
    np.testing.assert_allclose([inside, outside, nearest], [1, -1, 1])
