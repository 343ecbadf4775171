"""The line below the output, at a real pseudo terminal, as an emulator draws it."""

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pyte = pytest.importorskip("pyte")
from muster.agent.cli.live.status_line import LinePlace, OutputTail  # noqa: E402
from tests.screen import Drawn, Screen  # noqa: E402

#: Writes the pieces of each case through the line, which is drawn again before and behind each of them.
WRITER = """
import json, os, sys
from muster.agent.cli import printing
from muster.agent.cli.live.status_line import Part, StatusLine
for pieces in json.load(open(sys.argv[1])):
    os.write(1, b"\\x1bc")
    with StatusLine() as line:
        for number, piece in enumerate(pieces):
            line.show([Part(f"STATUS {number}", "1;32"), Part("more of it"), Part("x" * 30)])
            printing.write(piece.encode("latin-1"))
"""
#: Pieces of output: whole and partial lines, progress bars, colours that stay on, wide and combining characters, full
#: lines, titles, links.
PIECES = (
    "line\n", "a partial line ", "\r 45%|████▌     | 45/100 [00:12<00:15,  3.5it/s]", "\r\x1b[K",
    "\x1b[31mred ", "\x1b[0m", "\x1b[1;44mbold on blue\n", "中文字 ", "e\u0301", "\t", "x" * 79, "x" * 80, "y" * 81,
    "\n\n", "\r\n", "\x08", "\x07", "\x1b]0;a title\x07", "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\",
    "\x1b[?25l", "\x1b[2K", "é", " " * 40, "\r",
)  # fmt: skip
#: Of programs that draw the screen themselves.
MOVES = (
    "\x1b[2A",
    "\x1b[s",
    "\x1b7",
    "\x1b8",
    "\x1b[H\x1b[J",
    "\x1b[5;10H",
    "\x1b[?1049h",
    "\x1b[1;20r",
    "\x1b[10G",
    "\x1bM",
)


#: All that the line itself writes.
OWN = re.compile(rb"(?:\r|\x1bD\x1b\[A)\x1b7(?:\x1b\[B\r)?\x1b\[0m(?:\x1b\[1;32mSTATUS .*?)?\x1b\[J\x1b8")


def cases(count: int, pool: tuple[str, ...]) -> list[list[str]]:
    """Output in pieces that may be cut anywhere, inside of a sequence or a character, too; as text of one byte each."""
    chance, found = random.Random(21), []
    for _ in range(count):
        whole = "".join(chance.choice(pool) for _ in range(chance.randint(1, 60))).encode().decode("latin-1")
        cuts = sorted(chance.randrange(len(whole) + 1) for _ in range(chance.randint(0, 25)))
        found.append([whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)])
    return found


def _shown(data: bytes, columns: int) -> Any:
    """What stands where, in which colours; where the cursor is, and the colours in force."""
    drawn = Drawn(columns, 12)
    pyte.ByteStream(drawn).feed(data)
    cells = [(y, x, cell) for y, line in enumerate(drawn.cells) for x, cell in enumerate(line) if cell.data.strip()]
    return cells, drawn.cursor.x, drawn.cursor.y + len(drawn.past), drawn.cursor.attrs._replace(data="")


@pytest.mark.parametrize("columns", [80, 20])
def test_no_byte_of_the_output_looks_different_and_nothing_stays(tmp_path: Path, columns: int) -> None:
    made = [*cases(40, PIECES), *cases(12, PIECES + MOVES)]
    (tmp_path / "cases").write_text(json.dumps(made))
    with Screen([sys.executable, "-c", WRITER, str(tmp_path / "cases")], columns, 12, env={}) as terminal:
        assert terminal.end() == 0, terminal.lines
        written = terminal.raw.split(b"\x1bc")[1:]
    drawn = 0
    for pieces, got in zip(made, written, strict=True):
        whole = "".join(pieces).encode("latin-1").replace(b"\n", b"\r\n")
        assert OWN.sub(b"", got) == whole
        drawn += got.count(b"STATUS")
        if not any(one.encode() in whole for one in MOVES):
            assert _shown(got, columns) == _shown(whole, columns), pieces
    assert drawn > 100


def test_places_that_are_not_certain_are_left_alone() -> None:
    def place(*pieces: bytes, columns: int = 80) -> LinePlace:
        tail = OutputTail()
        for piece in pieces:
            tail.take(piece)
        return tail.place(columns)

    assert place() is place(b"a\n") is place(b"\x1b[31mred\n", b"\x1b[0m") is LinePlace.HERE
    assert place(b"a") is place(b"a\r") is place(b"\r 45%|\xe2\x96\x88| 4/9") is place(b"a\t") is LinePlace.BELOW
    # Inside of a character, of a sequence; a line that is full, or may be.
    assert place(b"\xe2\x96") is place(b"a\x1b") is place(b"\n\x1b[3") is place(b"\x1b]0;ti") is LinePlace.NOT_NOW
    assert place(b"x" * 80) is place(b"\xe4\xb8\xad" * 40) is place(b"x" * 500_000) is LinePlace.NOT_NOW
    assert place(b"x" * 79) is LinePlace.BELOW
    assert place(b"x" * 30, columns=30) is LinePlace.NOT_NOW
    # A program that moves the cursor has the screen for itself from then on.
    assert (
        place(b"\x1b[2A", b"\n")
        is place(b"\x1b", b"[H")
        is place(b"\x0c\n")
        is place("\x9bH".encode())
        is LinePlace.NEVER
    )


def test_long_work_shows_how_far_it_is_below_its_messages() -> None:
    code = (
        "from muster.agent.cli.live.at_terminal import working; from muster.agent.cli.printing import emit, note\n"
        "with working('testing the cards'):\n    note('card 1 is slow'); input()\nemit('a table\\n')"
    )
    with Screen([sys.executable, "-c", code], env={}) as terminal:
        terminal.until(lambda seen: seen[-1].startswith("testing the cards  ") and not seen[-1].endswith(" 0s"))
        assert terminal.lines[-2] == "muster: card 1 is slow"
        terminal.type(b"\n")
        assert terminal.end() == 0
        assert terminal.lines[-1] == "a table" and terminal.raw.count(b"testing") >= 2
