"""Bytes of a replica's output as lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torchx", reason="needs TorchX: pip install -r examples/torchx/requirements.txt")

from muster.torchx.app_logs import LineSplitter


def split(*chunks: bytes) -> list[str]:
    splitter = LineSplitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + list(splitter.rest())


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", ["a\n", "b\n"]),
        (b"a\n\nb", ["a\n", "\n", "b"]),
        (b"10%\r20%\r\nend", ["10%\r", "20%\r\n", "end"]),
        (b"\r\r\n", ["\r", "\r\n"]),
        (b"a\r", ["a\r"]),
        ("ü\n".encode(), ["ü\n"]),
        (b"\xff\n", ["\ufffd\n"]),
    ],
)
def test_lines(data: bytes, lines: list[str]) -> None:
    assert split(data) == lines
    assert split(*(data[i : i + 1] for i in range(len(data)))) == lines, "byte by byte as well"


def test_a_progress_bar_is_seen_as_it_moves() -> None:
    splitter = LineSplitter()
    assert list(splitter.feed(b"10%\r20")) == ["10%\r"]
    assert list(splitter.feed(b"%\r")) == [], "a newline may follow, which belongs to it"
    assert list(splitter.feed(b"\n")) == ["20%\r\n"]


def test_a_line_without_an_end_comes_in_pieces() -> None:
    text = "ü" * 100_000
    lines = split(text.encode()[:150_001], text.encode()[150_001:])
    assert len(lines) > 1 and "".join(lines) == text


@given(st.lists(st.binary(max_size=20)))
def test_nothing_is_lost_or_moved(chunks: list[bytes]) -> None:
    ascii_only = [bytes(byte & 0x7F for byte in chunk) for chunk in chunks]
    whole = b"".join(ascii_only)
    assert "".join(split(*ascii_only)).encode() == whole
    assert split(*ascii_only) == split(whole)
