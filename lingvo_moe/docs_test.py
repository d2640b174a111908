"""Links of the documentation lead somewhere, and every page is in the index."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {text.strip().replace(" ", "-") for text in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    for link in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {path}, which is not there"
        if anchor:
            assert anchor in _anchors(target), f"{page.name}: {path} has no heading #{anchor}"


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    missing = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    missing -= set(_LINK.findall(index))
    assert not missing


def test_every_test_named_in_reliability_exists():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    cases = [line for line in page.splitlines() if line.startswith("| ") and "_test.py" in line]
    assert len(cases) >= 150
    for case in cases:
        for path, name in re.findall(r"`([\w/]+_test\.py)(?:::\w+)*?(?:::(\w+))?`", case):
            source = (ROOT / "lingvo_moe" / path).read_text(encoding="utf-8")
            assert f"def {name}(" in source or not name, f"{path} has no test {name}"
