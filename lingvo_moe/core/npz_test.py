import numpy as np
import pytest

from lingvo_moe.core import npz


def test_comes_back_as_it_was(tmp_path):
    path = tmp_path / "some.npz"
    npz.save(path, counts=np.arange(3), names=np.array(["a", "bc"]), nothing=None)
    back = npz.load(path)
    assert set(back) == {"counts", "names"}
    np.testing.assert_array_equal(back["counts"], [0, 1, 2])
    assert back["names"].tolist() == ["a", "bc"]
    assert [p.name for p in tmp_path.iterdir()] == ["some.npz"]


@pytest.mark.parametrize("keep", [0, 10, 100, -40])
def test_damage(tmp_path, keep):
    path = tmp_path / "some.npz"
    npz.save(path, counts=np.random.default_rng(0).normal(size=100))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"\w+: "):
        npz.load(path)


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "some.npz"
    npz.save(path, counts=np.arange(3))

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space"):
        npz.save(path, counts=np.arange(9))
    assert len(npz.load(path)["counts"]) == 3
