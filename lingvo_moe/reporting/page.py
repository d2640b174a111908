"""Pages of HTML that need no other file: one style, escaping, pictures inside the file."""

import base64
import html
import re
from collections.abc import Iterable

# Control characters but for tab and line feed, and halves of UTF-16 pairs.
_FORBIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
caption { text-align: left; opacity: .7; }
th, td { padding: .18rem .6rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
.better { color: #1a7f37; } .worse { color: #c03221; }
.texts th, .texts td { text-align: start; vertical-align: top; }
.texts td:first-child { opacity: .65; white-space: normal; }
img { max-width: 100%; background: white; border-radius: 4px; }
code, pre { font-size: .85em; } .mark { opacity: .65; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page that needs no other file: title, heading, and the parts, which are HTML."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *parts,
            "</body></html>\n",
        ]
    )


def escape(text: object) -> str:
    """Text as HTML; characters that no page may hold become U+FFFD."""
    return html.escape(_FORBIDDEN.sub("\ufffd", str(text)))


def image(png: bytes, description: str) -> str:
    """A picture with its bytes in the page."""
    data = base64.b64encode(png).decode("ascii")
    return f'<p><img alt="{escape(description)}" src="data:image/png;base64,{data}"></p>'
