from lingvo_moe.reporting.table import Table
from lingvo_moe.testing.pages import parse_page

TABLE = Table(("pair", "train", "Δ"), [("de-en", "9,000", "+1.5"), ("日本語", "7", "-0.2")])


def test_names_stand_left_and_numbers_right():
    averages = Table(TABLE.columns, TABLE.rows, [("all", "", "+0.0")])
    assert averages.to_text().splitlines() == [
        "pair    train     Δ",
        "-------------------",
        "de-en   9,000  +1.5",
        "日本語      7  -0.2",  # a Chinese character takes two columns
        "-------------------",
        "all            +0.0",
    ]


def test_names_that_would_break_a_table_are_escaped():
    text = Table(("name", "n"), [("a\nb", "1"), ("\x1b[31mred\u2028", "22")]).to_text()
    assert text.splitlines()[2:] == ["a\\nb                1", "\\x1b[31mred\\u2028  22"]


def test_html_is_escaped_and_coloured_by_sign():
    html = Table(("a<b", "Δ"), [("<i>", "+1.5"), ("&", "-0.2"), ("x", "+0.0"), ("y", "–")]).to_html(
        "of <all>", signed=("Δ",)
    )
    assert parse_page(html).cells == [
        "of <all>",
        "a<b",
        "Δ",
        "<i>",
        "+1.5",
        "&",
        "-0.2",
        "x",
        "+0.0",
        "y",
        "–",
    ]
    assert html.count('class="better"') == html.count('class="worse"') == 1
    assert html.startswith("<table><caption>")


def test_markdown_and_columns_of_text():
    table = Table(("part", "kind", "n"), [("a", "bc", "1"), ("long", "d", "20")], texts=2)
    assert table.to_markdown().splitlines()[:3] == [
        "| part | kind | n |",
        "| --- | --- | --- |",
        "| a | bc | 1 |",
    ]
    assert table.to_text().splitlines()[2:] == ["a     bc     1", "long  d     20"]


def test_a_table_without_head():
    html = Table((), [("source", "a\0b\x1b\ud800")], texts=2).to_html()
    assert html == (
        '<table class="texts"><tr><td dir="auto">source</td>'
        '<td dir="auto">a\ufffdb\ufffd\ufffd</td></tr></table>'
    )
