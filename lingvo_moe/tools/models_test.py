import json

import pytest

from lingvo_moe.testing.commands import succeed
from lingvo_moe.tools import models


def test_texts_of_something_else_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt is not of a registered model. Remove it"):
        models.write_golden(tmp_path)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("notes.txt", "mine")]


def test_the_list_as_text_and_as_json():
    lines = succeed("models").stdout.splitlines()
    assert lines[0].split() == ["model", "weights", "description"]
    rows = json.loads(succeed("models", "--json").stdout)
    assert len(rows) == len(lines) - 2  # head and rule
    (row,) = [row for row in rows if row["model"] == "m4.MoE128E12L"]
    assert f"m4.MoE128E12L {row['weights']} {row['description']}" in [
        " ".join(line.split()) for line in lines
    ]
