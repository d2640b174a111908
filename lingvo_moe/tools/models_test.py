import json

from lingvo_moe.testing.commands import succeed


def test_the_list_as_text_and_as_json():
    lines = succeed("models").stdout.splitlines()
    assert lines[0].split() == ["model", "weights", "description"]
    rows = json.loads(succeed("models", "--json").stdout)
    assert len(rows) == len(lines) - 2  # head and rule
    (row,) = [row for row in rows if row["model"] == "m4.MoE128E12L"]
    assert f"m4.MoE128E12L {row['weights']} {row['description']}" in [
        " ".join(line.split()) for line in lines
    ]
