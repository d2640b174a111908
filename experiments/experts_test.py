import json
import sys

from experiments import experts


def test_table_and_picture(tmp_path, monkeypatch):
    runs = [
        {
            "row": row,
            "seed": seed,
            "dev_loss": 3.0 - 0.5 * seed,
            "curve": [[10, 5.0], [20, 3.0 - 0.5 * seed]],
            "target_tokens": 2_000_000,
            "step_seconds": 1.8,
            "pairs": {"en-aa": [10, 1.0, 7.0], "en-bb": [90, 1.0, 20.0 + seed]},
        }
        for row, seed in (("dense", 1), ("experts", 1), ("experts", 2))
    ]
    axes = experts.draw(runs).axes
    assert [[line.get_label() for line in one.lines] for one in axes] == [["dense", "experts"]] * 3
    (_, tokens), (_, hours), (_, chrf) = ([line.get_xydata() for line in one.lines] for one in axes)
    assert tokens.tolist() == [[1, 5.0], [2, 2.25]]  # means of both seeds
    assert hours.tolist() == [[0.005, 5.0], [0.01, 2.25]]
    assert chrf[:, 1].tolist() == [14.25, 14.25]
    path = tmp_path / "runs.json"
    path.write_text(json.dumps({"runs": runs}))
    monkeypatch.setattr(sys, "argv", ["experts", str(path)])
    experts.main()
    assert "dense" in path.with_suffix(".csv").read_text()
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
