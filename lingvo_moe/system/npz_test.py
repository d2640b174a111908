import numpy as np
import pytest

from lingvo_moe.system import npz


def test_comes_back_as_it_was(tmp_path):
    path = tmp_path / "some.npz"
    npz.save(path, counts=np.arange(3), names=np.array(["a", "bc"]), nothing=None)
    back = npz.load(path, dict, "arrays", "")
    assert set(back) == {"counts", "names"}
    np.testing.assert_array_equal(back["counts"], [0, 1, 2])
    assert back["names"].tolist() == ["a", "bc"]
    assert [p.name for p in tmp_path.iterdir()] == ["some.npz"]


@pytest.mark.parametrize("keep", [0, 10, 100, -40])
def test_damage(tmp_path, keep):
    path = tmp_path / "some.npz"
    npz.save(path, counts=np.random.default_rng(0).normal(size=100))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="holds no"):
        npz.load(path, dict, "thing", "Make one.")


@pytest.mark.parametrize(
    "make", [lambda arrays: arrays["weights"], lambda arrays: int("x"), lambda arrays: 1 + ""]
)
def test_a_file_of_another_kind(tmp_path, make):
    path = tmp_path / "some.npz"
    npz.save(path, counts=np.arange(3))
    with pytest.raises(ValueError, match=r"some.npz holds no thing \(.*\)\. Make one\.$"):
        npz.load(path, make, "thing", "Make one.")
