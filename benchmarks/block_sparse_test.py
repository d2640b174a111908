import pytest

jax = pytest.importorskip("jax")

import block_sparse  # noqa: E402


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(block_sparse, "MODELS", {"small": (8, 16, 64)})
    monkeypatch.setattr(block_sparse, "EXPERTS", 2)
    monkeypatch.setattr(block_sparse, "BLOCK", 8)
    monkeypatch.setattr(block_sparse, "_LEAST_SECONDS", 0.0)


@pytest.mark.slow
def test_every_product_equals_the_dense_one_and_a_failure_ends_no_other(small, tmp_path, capsys):
    block_sparse.write(tmp_path / "programs", "float32")
    (tmp_path / "programs" / "small.dsdt.stablehlo").write_bytes(b"damaged")
    with pytest.raises(SystemExit, match="1 products failed"):
        block_sparse.run_all(tmp_path / "programs", 1)
    printed = capsys.readouterr()
    assert "small, DSDT, float32: " in printed.err
    names = [f"small, {name.upper()}, float32" for name in block_sparse.PRODUCTS if name != "dsdt"]
    rows = [line for line in printed.out.splitlines() if line.startswith("| small, ")]
    assert [row.split("|")[1].strip() for row in rows] == names
    assert "Mean share " in printed.out
