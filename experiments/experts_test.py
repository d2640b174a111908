import json

from experiments import experts


def _run(row, seed):
    loss, chrf = 3.0 - 0.5 * seed, 20.0 + seed
    made = {"row": row, "seed": seed, "dev_loss": loss, "curve": [[10, 5.0], [20, loss]]}
    pairs = {"en-aa": [10, 1.0, 7.0], "en-bb": [90, 1.0, chrf]}
    return made | {"target_tokens": 2_000_000, "step_seconds": 1.8, "pairs": pairs}


def test_table_and_picture(tmp_path):
    runs = [_run("dense", 1), _run("experts", 1), _run("experts", 2)]
    axes = experts.draw(runs).axes
    assert [[line.get_label() for line in one.lines] for one in axes] == [["dense", "experts"]] * 3
    tokens, hours, chrf = (one.lines[1].get_xydata().tolist() for one in axes)
    assert tokens == [[1, 5.0], [2, 2.25]]  # means of both seeds
    assert hours == [[0.005, 5.0], [0.01, 2.25]]
    assert [score for _, score in chrf] == [14.25, 14.25]
    path = tmp_path / "runs.json"
    path.write_text(json.dumps({"runs": runs}))
    experts.main(path)
    assert "dense" in path.with_suffix(".csv").read_text()
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
