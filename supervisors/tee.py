"""From a rank's FIFO into its file, by splice(2), without ever blocking or breaking the rank.

The rank holds the FIFO read-write, so it never gets SIGPIPE, and what is in the FIFO stays while supervisors come and
go. The file is written at an offset that we keep (splice refuses O_APPEND); a successor goes on at the file's end.

Beside the file lies a time index: records of 16 bytes, little endian, `u64 offset, u64 nanoseconds since the epoch`,
at most one each 100 ms: "from this offset on, the bytes were written at this time". It is what reading by time
and merging over ranks rest on, and it may be lost without harm to the output.
"""

import contextlib
import errno
import fcntl
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

#: Size of a rank's FIFO, and most bytes of one rank moved at a time: one rank's flood must not starve the others.
#: 256 KiB: with 1 MiB the pages fall out of the processor's cache between write and splice, at twice the time.
FIFO_SIZE = BATCH = 1 << 18
INDEX_INTERVAL_S = 0.1
INDEX_RECORD = struct.Struct("<QQ")
#: How long after an error the file is tried again.
RETRY_S = 1.0
_TAIL_BYTES = 4096
_TAIL_LINES = 20


@dataclass(slots=True)
class Gap:
    """Output that could not be written: how much, since when (seconds since the epoch), and why."""

    since: float
    error: str
    bytes: int = 0
    until: float = 0.0

    def line(self) -> str:
        def clock(t: float) -> str:
            return time.strftime("%H:%M:%S", time.localtime(t))

        return f"[muster: {self.bytes} bytes lost {clock(self.since)}-{clock(self.until)}: {self.error}]\n"


def make_fifo(path: Path, uid: int, gid: int) -> None:
    """Creates the FIFO of a rank, owned by the job's user so that the rank can open /dev/stdout again. Keeps one that
    is there (a predecessor made it). Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    if (uid, gid) != (os.geteuid(), os.getegid()):
        os.chown(path, uid, gid, follow_symlinks=False)


def open_reader(path: Path) -> int:
    """The read end; never blocks. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


class RankLog:
    """Drains one FIFO into one file."""

    def __init__(self, fifo: Path, log: Path, index: Path, uid: int, gid: int) -> None:
        """Opens everything; the file goes on at its end. Raises OSError where FIFO or file cannot be opened."""
        self.fd = open_reader(fifo)
        with contextlib.suppress(OSError):  # over the user's limit for pipes: the kernel's default size serves too
            fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, FIFO_SIZE)
        self.path = log
        self._file = _open(log, uid, gid, 0)
        self._index = _open(index, uid, gid, os.O_APPEND)
        self._offset = os.fstat(self._file).st_size
        os.ftruncate(self._index, os.fstat(self._index).st_size // INDEX_RECORD.size * INDEX_RECORD.size)
        self._indexed = 0.0
        self._splice = True
        self._gap: Gap | None = None
        self._retry_at = 0.0
        self.ended = False

    @property
    def stalled(self) -> bool:
        """True while output is being lost."""
        return self._gap is not None

    def drain(self) -> Gap | None:
        """Moves what is there, at most BATCH bytes. Sets `ended` when nobody can write any more.

        Returns the gap that was just closed by a line in the file, if one was.
        """
        closed = self.resume() if self._gap is not None else None
        try:
            moved = self._move() if self._gap is None else self._lose()
        except BlockingIOError:
            return closed
        if moved == 0:
            self.ended = True
        return closed

    def drain_all(self, deadline: float) -> list[Gap]:
        """Empties the FIFO, until `deadline` (time.monotonic()) at most. Returns the gaps closed meanwhile."""
        closed = []
        while not self.ended and time.monotonic() < deadline:
            before = self._offset, self._gap.bytes if self._gap else 0
            gap = self.drain()
            if gap is not None:
                closed.append(gap)
            if before == (self._offset, self._gap.bytes if self._gap else 0):
                break
        return closed

    def resume(self, force: bool = False) -> Gap | None:
        """Tries to close a gap: writes its line. Returns it, or None where there is none or the file still refuses."""
        now = time.monotonic()
        if self._gap is None or (now < self._retry_at and not force):
            return None
        self._retry_at = now + RETRY_S
        gap = self._gap
        if not gap.bytes:  # refused, but nothing had to be thrown away yet
            self._gap = None
            return None
        gap.until = time.time()
        data = gap.line().encode()
        if self._offset and not self._ends_with_newline():
            data = b"\n" + data
        try:
            written = os.pwrite(self._file, data, self._offset)
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._offset)
            return None
        self._offset += len(data)
        self._gap = None
        return gap

    def abandon(self) -> Gap | None:
        """The gap whose line could not be written to the end, if any: only the journal can tell of it then."""
        gap, self._gap = self._gap, None
        if gap is None or not gap.bytes:
            return None
        gap.until = time.time()
        return gap

    def close(self) -> None:
        for fd in (self.fd, self._file, self._index):
            os.close(fd)

    def _move(self) -> int:
        start = self._offset
        try:
            moved = self._splice_once() if self._splice else self._copy_once()
        except BlockingIOError:
            raise
        except OSError as error:
            if self._splice and error.errno in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                self._splice = False  # a file system without splice
                return self._move()
            self._gap = Gap(time.time(), error.strerror or str(error))
            self._retry_at = time.monotonic() + RETRY_S
            return self._lose()
        self._offset += moved
        if moved:
            self._note(start)
        return moved

    def _splice_once(self) -> int:
        return os.splice(self.fd, self._file, BATCH, offset_dst=self._offset)

    def _copy_once(self) -> int:
        """Without splice there is a moment in which the bytes are only in our memory: what a full disk refuses then is
        counted as lost, and a supervisor killed in that moment loses them (docs/logs.md)."""
        data = os.read(self.fd, BATCH)
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._offset + written)
        except OSError as error:
            self._gap = Gap(time.time(), error.strerror or str(error), len(data) - written)
            self._retry_at = time.monotonic() + RETRY_S
        return written if written or not data else self._lose()

    def _lose(self) -> int:
        data = os.read(self.fd, BATCH)
        if self._gap is not None:
            self._gap.bytes += len(data)
        return len(data)

    def _note(self, offset: int) -> None:
        now = time.monotonic()
        if now - self._indexed < INDEX_INTERVAL_S:
            return
        self._indexed = now
        record = INDEX_RECORD.pack(offset, time.time_ns())
        try:
            if os.write(self._index, record) < len(record):
                size = os.fstat(self._index).st_size
                os.ftruncate(self._index, size // len(record) * len(record))
            # Somebody cut the file: go on at its end rather than leave a hole.
            size = os.fstat(self._file).st_size
            if size < self._offset:
                self._offset = size
        except OSError:
            return  # no room for the index: times become coarser, the output goes on

    def _ends_with_newline(self) -> bool:
        fd = os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, 1, self._offset - 1) == b"\n"
        finally:
            os.close(fd)


def tail(path: Path) -> tuple[str, ...]:
    """The last lines of a rank's file, at most 20 of at most 4 KiB in all; none where it cannot be read."""
    try:
        with open(path, "rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES)
            file.seek(start)
            text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    lines = text.splitlines()
    return tuple(lines[1 if start and len(lines) > 1 else 0 :][-_TAIL_LINES:])


def _open(path: Path, uid: int, gid: int, flags: int) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o640)
    if (uid, gid) != (os.geteuid(), os.getegid()):
        os.fchown(fd, uid, gid)
    return fd
