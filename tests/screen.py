"""What a person sees: a program at a pseudo terminal, whose output an emulator draws."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyte

#: Seconds for which something may not be seen, at most.
PATIENCE_S = 60.0


class Drawn(pyte.Screen):
    """An emulated screen that keeps what scrolls out of it."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.past: list[list[Any]] = []
        super().__init__(columns, rows)

    def index(self) -> None:
        if self.cursor.y == (self.margins or (0, self.lines - 1))[1]:
            self.past.append([self.buffer[0][x] for x in range(self.columns)])
        super().index()

    @property
    def cells(self) -> list[list[Any]]:
        """All that was written, from the first line on."""
        return [*self.past, *([self.buffer[y][x] for x in range(self.columns)] for y in range(self.lines))]


def lines(drawn: Drawn) -> list[str]:
    """All that was written, as text, without empty lines at the end."""
    found = ["".join(cell.data for cell in line).rstrip() for line in drawn.cells]
    while found and not found[-1]:
        found.pop()
    return found


class Screen:
    """A program in front of its own terminal."""

    def __init__(
        self, command: Sequence[str], columns: int = 80, rows: int = 24, *, env: Mapping[str, str], **streams: Any
    ) -> None:
        self.master, self.slave = pty.openpty()
        self.drawn = Drawn(columns, rows)
        self._stream = pyte.ByteStream(self.drawn)
        #: All that the terminal got.
        self.raw = b""
        self._resize(columns, rows)
        ends = {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave} | streams
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command], env={**os.environ, "TERM": "xterm-256color", **env}, **ends
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        os.close(self.slave)
        os.close(self.master)

    def _resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        self.drawn.resize(rows, columns)
        self._resize(columns, rows)

    def type(self, data: bytes) -> None:
        os.write(self.master, data)

    @property
    def lines(self) -> list[str]:
        return lines(self.drawn)

    def read(self, seconds: float = 0.0) -> bool:
        """Takes what is there, or comes so soon."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        data = os.read(self.master, 65536)
        self.raw += data
        self._stream.feed(data)
        return True

    def until(self, what: Callable[[list[str]], Any], message: str = "") -> Any:
        """Reads until the lines, of which there are two by then, are so, and returns what `what` gave."""
        end = time.monotonic() + PATIENCE_S
        while not (len(self.lines) > 1 and (found := what(self.lines))):
            left = end - time.monotonic()
            assert left > 0, f"{message} {self.lines}"
            self.read(min(left, 0.5))
        return found

    def end(self) -> int:
        """The exit code, once the program has ended and all is drawn."""
        end = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < end, self.lines
            self.read(0.05)
        while self.read():
            pass
        return self.process.returncode
