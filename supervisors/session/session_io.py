"""The streams of a session: the output of its command, kept until the client has received it, and its input, kept until
the command has read it. Neither blocks the loop, and neither keeps more than WINDOW bytes.
"""

import contextlib
import fcntl
import os
import select
import struct
import termios
from collections.abc import Callable

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.supervision_errors import ProtocolError
from muster.supervisors.system.loop import Loop
from muster.supervisors.wire.frames import MAX_DATA, WINDOW

#: Most that is read of one stream once its command has ended: somebody else may have it open, and write for ever.
LAST_BYTES = 1 << 20
#: Erasing in the terminal's own line editing erases a character of UTF-8, not a byte (termios(3)); not in Python's.
_IUTF8 = 0o40000


@dataclass(frozen=True, slots=True)
class SessionDescriptors:
    """Descriptors: the command's three, and ours. `input` is -1 for none, `errors` where a terminal has both."""

    command: tuple[int, int, int]
    input: int
    output: int
    errors: int = -1

    def close_command(self) -> None:
        """The command has its own."""
        for fd in set(self.command):
            os.close(fd)

    def close(self) -> None:
        """Closes our ends, and the command's."""
        """Closes the stream; what is kept can still be read."""
        self.close_command()
        for fd in (self.input, self.output, self.errors):
            if fd >= 0:
                os.close(fd)


def open_terminal(rows: int, columns: int, uid: int) -> SessionDescriptors:
    """A pseudo terminal of that size whose user is `uid`.

    The command's end stays open with us for as long as the session lives: so ours has no end while the command passes
    its own on, and the session ends with its command. Raises OSError.
    """
    made: list[int] = []
    try:
        made += os.openpty()
        master, slave = made
        set_size(master, rows, columns)
        modes = termios.tcgetattr(slave)
        modes[0] |= _IUTF8
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        if uid != os.geteuid():
            os.fchown(slave, uid, -1)
        os.fchmod(slave, 0o620)
        os.set_blocking(master, False)
        made.append(os.dup(master))  # what is waited for differs
        return SessionDescriptors((slave, slave, slave), made[2], master)
    except (OSError, termios.error) as error:
        for fd in made:
            os.close(fd)
        raise error if isinstance(error, OSError) else OSError(*error.args) from None


def open_pipes(with_input: bool, uid: int, gid: int) -> SessionDescriptors:
    """A pipe for each stream; they belong to the command's user, who can so open /dev/stdout again. Raises OSError."""
    made: list[int] = []
    try:
        made += os.pipe() if with_input else (os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC),)
        for _ in range(2):
            made += os.pipe()
        *first, output, output_end, errors, errors_end = made
        for fd in (first[0], output_end, errors_end) if with_input else (output_end, errors_end):
            os.fchown(fd, uid, gid)
        for fd in (*first[1:], output, errors):
            os.set_blocking(fd, False)
        return SessionDescriptors((first[0], output_end, errors_end), first[1] if with_input else -1, output, errors)
    except OSError:
        for fd in made:
            os.close(fd)
        raise


def set_size(terminal: int, rows: int, columns: int) -> None:
    """Each from 0 to 65535. Raises OSError."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


class Outlet:
    """One stream of output."""

    def __init__(self, loop: Loop, fd: int, is_due: Callable[["Outlet"], None]) -> None:
        """Calls `is_due` when `read` may find something. Raises OSError."""
        self._loop, self._fd, self._is_due = loop, fd, is_due
        self._kept = bytearray()
        self._start = 0
        #: Offset of what is sent next.
        self.sent = 0
        self._holds = True
        self._last: int | None = None
        self._watched = False
        self._watch()

    @property
    def is_open(self) -> bool:
        """Whether there may be more output."""
        return self._fd >= 0

    @property
    def start(self) -> int:
        """Offset of the oldest byte that is kept."""
        return self._start

    @property
    def end(self) -> int:
        """Offset behind the newest byte."""
        return self._start + len(self._kept)

    def hold(self, holds: bool) -> None:
        """Whether a client reads all of it: then the command waits for room. Otherwise the oldest is dropped."""
        self._holds = holds
        self._watch()

    def read(self, most: int) -> int:
        """Reads what has come, at most so many bytes; returns how many. A stream that is through is closed."""
        room = WINDOW - len(self._kept) if self._holds else WINDOW
        most = min(most, room) if self._last is None else min(most, room, self._last)
        if self._fd < 0 or most <= 0:
            return 0
        try:
            data = os.read(self._fd, most)
        except BlockingIOError:
            if self._last is not None:
                self.close()
            return 0
        except OSError:  # a terminal that was hung up
            data = b""
        self._kept += data
        if (over := len(self._kept) - WINDOW) > 0:
            del self._kept[:over]
            self._start += over
            self.sent = max(self.sent, self._start)
        if self._last is not None:
            self._last -= len(data)
        if not data or self._last == 0:
            self.close()
        self._watch()
        return len(data)

    def finish(self) -> None:
        """The command has ended: no more output follows."""
        self._last = LAST_BYTES
        self._watch()

    def next(self) -> bytes:
        """What is to be sent from `sent` on, at most MAX_DATA bytes; it counts as sent."""
        at = self.sent - self._start
        data = bytes(self._kept[at : at + MAX_DATA])
        self.sent += len(data)
        return data

    def received(self, offset: int) -> None:
        """All before `offset` need not be kept. Raises ProtocolError where it was not sent."""
        if offset > self.sent:
            raise ProtocolError(f"{offset} bytes received where {self.sent} were sent")
        if offset > self._start:
            del self._kept[: offset - self._start]
            self._start = offset
            self._watch()

    def go_back(self, offset: int | None) -> None:
        """Somebody else goes on from there, at most at `end`, or from the oldest that is kept."""
        self.sent = max(self._start, offset or 0)
        self.received(self.sent)

    def close(self) -> None:
        """Closes the stream; what is kept can still be read."""
        if self._fd >= 0:
            self._loop.remove(self._fd)
            os.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        """Closes the stream, and keeps nothing: the session is in a cycle of references, and the collector of these
        comes late."""
        self.close()
        self._start, self._kept = self.end, bytearray()

    def _watch(self) -> None:
        if self._fd < 0:
            return
        room = not self._holds or len(self._kept) < WINDOW
        if room and self._last is not None:
            self._is_due(self)  # an empty pipe says nothing, and is closed
        # Removed, not only left alone: epoll reports the end of a pipe in any case.
        if room and not self._watched:
            self._loop.add(self._fd, lambda: self._is_due(self))
        elif self._watched and not room:
            self._loop.remove(self._fd)
        self._watched = room


class Inlet:
    """The input. muster discards input that the command no longer reads, and counts it as taken."""

    def __init__(self, loop: Loop, fd: int, terminal: bool, moved: Callable[[], None]) -> None:
        """`moved`: `taken` has grown, behind our back."""
        self._loop, self._fd, self._terminal, self._moved = loop, fd, terminal, moved
        self._queue = bytearray()
        self._closed = False
        self._line_ended = True
        self._watched = False
        #: Bytes that came in all, and those that the command has taken.
        self.had = self.taken = 0

    def feed(self, offset: int, data: bytes) -> None:
        """Raises ProtocolError for what leaves a gap, or is more than was acknowledged. What comes behind the end goes
        to nobody: who attaches later, with input of their own, cannot know that it has ended."""
        if offset > self.had:
            raise ProtocolError(f"input from offset {offset} on where {self.had} bytes came")
        data = data[self.had - offset :]
        if not data:
            return
        if self.had - self.taken + len(data) > WINDOW:
            raise ProtocolError(f"more than {WINDOW} bytes of input that are not acknowledged")
        self.had += len(data)
        if not self._closed:
            self._line_ended = data.endswith((b"\n", b"\r"))
            self._queue += data
        self._write()

    def end(self, offset: int) -> None:
        """The input ends at `offset`. On a terminal muster sends ^D, and a second one in an unfinished line, as the
        first one only submits that line. Raises ProtocolError."""
        if offset != self.had:
            raise ProtocolError(f"the end of the input at {offset} where {self.had} bytes came")
        if self._closed:
            return
        self._closed = True
        if self._terminal and self._fd >= 0:
            with contextlib.suppress(termios.error):
                key = termios.tcgetattr(self._fd)[6][termios.VEOF]
                self._queue += key * (1 if self._line_ended else 2) if isinstance(key, bytes) else b""
        self._write()

    def close(self) -> None:
        """The command no longer reads it."""
        if self._fd >= 0:
            self._loop.remove(self._fd)
            os.close(self._fd)
            self._fd = -1
        self._queue.clear()
        self.taken = self.had

    def _write(self) -> None:
        while self._queue and self._fd >= 0:
            try:
                written = os.write(self._fd, memoryview(self._queue)[:MAX_DATA])
            except BlockingIOError:
                break
            except OSError:  # no process has it open any more
                self.close()
                return
            del self._queue[:written]
            self.taken = min(self.had, self.taken + written)
        if not self._queue:  # what came behind the end has never been in it
            self.taken = self.had
        if self._fd < 0 or (self._closed and not self._queue and not self._terminal):
            self.close()
        elif self._queue and not self._watched:
            self._loop.add(self._fd, self._on_room, select.EPOLLOUT)
            self._watched = True
        elif self._watched and not self._queue:
            self._loop.remove(self._fd)
            self._watched = False

    def _on_room(self) -> None:
        self._write()
        self._moved()
