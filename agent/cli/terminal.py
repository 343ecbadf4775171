"""The terminal: on stdin while a remote program uses it, on stdout for what is shown live."""

import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable
from types import FrameType
from typing import Any

import click

from muster.agent.cli.printing import emit, write

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Maximum length of a sequence of keys.
_MAX_KEYS = 16


class Terminal:
    """Raw between `raw` and `restore`, which may alternate; the caller of `raw` restores it in a `finally`."""

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self._before: list[Any] | None = None
        try:
            self._before = termios.tcgetattr(fd)
        except termios.error:
            pass

    @property
    def there(self) -> bool:
        """Whether stdin is a terminal."""
        return self._before is not None

    def raw(self) -> None:
        """Sets raw mode: every key is passed on, Ctrl-C too. Keeps keys that were typed before."""
        self._set(lambda: tty.setraw(self._fd, termios.TCSANOW))

    def keys(self) -> None:
        """Each key is passed on by itself and not shown; Ctrl-C and Ctrl-Z stay signals."""
        self._set(lambda: tty.setcbreak(self._fd, termios.TCSANOW))

    def restore(self) -> None:
        """Restores the mode from before `raw` or `keys`."""
        before = self._before
        if before is not None:
            self._set(lambda: termios.tcsetattr(self._fd, termios.TCSANOW, before))

    def size(self) -> tuple[int, int]:
        """Rows and columns; zeros if unknown."""
        try:
            columns, rows = os.get_terminal_size(self._fd)
        except OSError:
            return 0, 0
        return rows, columns

    def _set(self, change: Callable[[], None]) -> None:
        """Sets the mode, only in the foreground: otherwise another process (the shell) has the terminal, and the kernel
        would stop this one. TCSANOW: after Ctrl-S any other mode waits forever."""
        try:
            if os.tcgetpgrp(self._fd) == os.getpgrp():
                change()
        except (OSError, termios.error):
            pass  # the terminal was closed


def keys(written: str) -> bytes:
    """The bytes that a terminal sends for keys as in `ctrl-p,ctrl-q`. Raises ValueError."""
    typed = b""
    for key in written.split(","):
        name = key.lower().removeprefix("ctrl-")
        if name != key.lower() and len(name) == 1 and name in "abcdefghijklmnopqrstuvwxyz@[\\]^_":
            typed += bytes([ord(name.upper()) & 0x1F])
        elif len(key) == 1:
            typed += key.encode()
        else:
            raise ValueError(f"{key!r}: must be ctrl- and a letter or one of @[\\]^_, or one character")
    if len(typed) > _MAX_KEYS:
        raise ValueError(f"{written!r}: must be at most {_MAX_KEYS} bytes")
    return typed


class Watch:
    """Finds a sequence of keys in the input."""

    def __init__(self, wanted: bytes) -> None:
        self._wanted = wanted
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """The input to pass on, and whether the keys were pressed. Holds back input that may begin the sequence."""
        if not self._wanted:
            return data, False
        data = self._held + data
        if (at := data.find(self._wanted)) >= 0:
            return data[:at], True
        most = min(len(self._wanted) - 1, len(data))
        held = next((n for n in range(most, 0, -1) if data.endswith(self._wanted[:n])), 0)
        self._held = data[len(data) - held :]
        return data[: len(data) - held], False


_HOME, _TO_LINE_END, _TO_SCREEN_END = b"\x1b[H", "\x1b[K", b"\x1b[J"
_OTHER_SCREEN, _BACK = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"


def restored(take: Callable[[], None], body: Callable[[], None], give_back: Callable[[], None]) -> None:
    """Calls these, `give_back` whatever happens. A signal that asks for the end is a KeyboardInterrupt in `body`, the
    first one alone: neither `take` nor `give_back` is cut short. Behind them SIGTERM and SIGHUP end the command, with
    exit code 128+n.

    All in one frame: where a `with` ends, a signal may come before its `__exit__` has begun.
    """
    came: list[int] = []
    armed = False

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal armed
        came.append(number)
        if armed:
            armed = False
            raise KeyboardInterrupt

    before = {n: signal.signal(n, handle) for n in _ENDS if signal.getsignal(n) is not signal.SIG_IGN}
    try:
        take()
        armed = True
        if came:
            raise KeyboardInterrupt
        body()
    except KeyboardInterrupt:
        armed = False
        if came and came[0] != signal.SIGINT:
            raise click.exceptions.Exit(128 + came[0]) from None
        raise
    finally:
        armed = False
        give_back()
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if came else handler)


class LiveScreen:
    """Text that is drawn again and again in the same place, if `live`; else one text after the other."""

    def __init__(self, live: bool) -> None:
        self.live = live

    def run(self, body: Callable[[], None]) -> None:
        """Calls `body`. What was on the terminal before is back behind it."""
        if self.live:
            restored(self.show, body, self.leave)
        else:
            body()

    def show(self) -> None:
        """Takes the terminal, after `leave`."""
        if self.live:
            write(_OTHER_SCREEN)

    def leave(self) -> None:
        """Shows what was on the terminal before."""
        if self.live:
            write(_BACK)

    def draw(self, text: str) -> None:
        """Raises StdoutFailed, or click's Exit where nobody reads any more."""
        if not self.live:
            emit(text)
            return
        lines = text.splitlines()[: shutil.get_terminal_size((80, 24)).lines - 1]
        write(_HOME + "".join(f"{line}{_TO_LINE_END}\r\n" for line in lines).encode() + _TO_SCREEN_END)


def can_be_live() -> bool:
    """Whether stdout is a terminal on which something can be drawn."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
