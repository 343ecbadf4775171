"""The terminal on stdin while it belongs to a program elsewhere."""

import os
import termios
import tty
from collections.abc import Callable
from typing import Any

#: No longer sequence of keys makes sense.
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
        """Whether it is a terminal at all."""
        return self._before is not None

    def raw(self) -> None:
        """Every key is passed on as it is, Ctrl-C too. Nothing that was typed before is lost."""
        self._set(lambda: tty.setraw(self._fd, termios.TCSANOW))

    def restore(self) -> None:
        """As it was found."""
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
        """Only in the foreground: else it is another's now, the shell's say, and we would be stopped. At once: at a
        terminal that was halted by Ctrl-S anything else waits forever."""
        try:
            if os.tcgetpgrp(self._fd) == os.getpgrp():
                change()
        except (OSError, termios.error):
            pass  # it was closed


def keys(written: str) -> bytes:
    """What a terminal sends for keys as in `ctrl-p,ctrl-q`. Raises ValueError."""
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
    """Looks for a sequence of keys in what is typed."""

    def __init__(self, wanted: bytes) -> None:
        self._wanted = wanted
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """What is to be passed on, and whether the keys were pressed. What may be their beginning is held back."""
        if not self._wanted:
            return data, False
        data = self._held + data
        if (at := data.find(self._wanted)) >= 0:
            return data[:at], True
        most = min(len(self._wanted) - 1, len(data))
        held = next((n for n in range(most, 0, -1) if data.endswith(self._wanted[:n])), 0)
        self._held = data[len(data) - held :]
        return data[: len(data) - held], False
