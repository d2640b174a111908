import gzip
import os

import pytest

from lingvo_moe.system.lines import (
    ArrivingLines,
    blocks,
    decode_lines,
    is_blank,
    one_line,
    read_lines,
)

UNUSUAL = "a\u2028b\u0085c\x0cd\x0be\x1cf\x1dg\x1eh\ri"


def test_only_newlines_end_a_line(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(f"{UNUSUAL}\r\n{UNUSUAL}\n\nlast\r".encode())
    assert list(read_lines(path)) == [UNUSUAL, UNUSUAL, "", "last\r"]


def test_a_byte_order_mark_is_not_text(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress("\ufeffone\n\ufefftwo\n".encode()))
    assert list(read_lines(path)) == ["one", "\ufefftwo"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"one\ntwo\xff\n", r"text, line 2: not UTF-8 \(invalid start byte at byte 3\)"),
        ("one\n".encode("utf-16"), "text is UTF-16; convert it"),
        ("one\n".encode("utf-16-le"), "text, line 1: a NUL character"),
    ],
)
def test_other_encodings_are_errors_with_a_place_and_a_cure(data, message):
    with pytest.raises(ValueError, match=message):
        list(decode_lines(data.splitlines(keepends=True), "text"))


@pytest.mark.parametrize("length", [0, 9, -9])
def test_a_damaged_gzip_file_is_named(length, tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"one\n" * 1000)[:length])
    with pytest.raises(ValueError, match=r"text\.gz"):
        list(read_lines(path))


@pytest.mark.parametrize(
    "text", ["", " \t\r", "\u3000", "\xa0", "\u200b", "\ufeff", "\u200e\x1c\u2028"]
)
def test_lines_that_show_nothing_are_blank(text):
    assert is_blank(text)
    assert not is_blank(f"{text}.{text}")


def test_a_translation_is_one_line_that_readers_accept():
    assert one_line("a\0b\u2028c\nd") == "a b c d"


def test_a_block_ends_when_no_more_lines_arrive():
    read, write = os.pipe()
    with open(read, "rb") as file:
        arriving = blocks(ArrivingLines(file, "pipe"), 3)
        os.write(write, b"one\ntwo\nthr")
        assert next(arriving) == ["one", "two"]
        os.write(write, b"ee\n\n")
        assert next(arriving) == ["three", ""]
        os.write(write, b"5\n6\n7\n8\r\nlast")
        assert next(arriving) == ["5", "6", "7"]
        assert next(arriving) == ["8"]
        os.close(write)
        assert list(arriving) == [["last"]]


def test_lines_that_have_all_arrived_are_in_whole_blocks(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"line\n" * 30_000 + b"x" * 200_000)
    with path.open("rb") as file:
        sizes = [list(map(len, block)) for block in blocks(ArrivingLines(file, "file"), 9_999)]
    assert sizes == [[4] * 9_999] * 3 + [[4, 4, 4, 200_000]]
    assert list(blocks(iter("abcde"), 2)) == [["a", "b"], ["c", "d"], ["e"]]
