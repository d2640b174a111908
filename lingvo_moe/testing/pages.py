"""Reads HTML pages."""

import html.parser

VOID = {"meta", "img", "br"}


class Checker(html.parser.HTMLParser):
    """Collects text and links; fails at a tag that is closed out of turn."""

    def __init__(self):
        super().__init__()
        self.open, self.cells, self.links, self.tags = [], [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.cells.append(data)


def parse_page(text: str) -> Checker:
    """The content of a well-formed page."""
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker
