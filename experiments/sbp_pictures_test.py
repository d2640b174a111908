from pathlib import Path

from experiments import sbp_pictures
from lingvo_moe.sbp.types import parse
from lingvo_moe.sharding.annotations import Mesh

PAGE = Path(__file__).parents[1] / "docs" / "sbp.md"


def test_the_page_has_what_the_code_derives():
    page, at = PAGE.read_text(), 0
    for block in sbp_pictures.blocks():
        found = page.find(block, at)
        assert found >= 0, f"docs/sbp.md lacks, or has in another place:\n{block}"
        at = found + len(block)


def test_a_picture():
    # Columns over x, then P over y: summands of half a matrix.
    picture = sbp_pictures.draw(parse("S(1),P"), (2, 2), Mesh(("x", "y"), (2, 1)))
    assert picture == (
        "S(1),P    device 0,0  device 1,0\n          ▒·          ·▒\n          ▒·          ·▒"
    )
