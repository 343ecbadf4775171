"""From a rank's FIFO into its file, by splice(2), without ever blocking or breaking the rank.

The rank holds the FIFO read-write, so it never gets SIGPIPE, and what is in the FIFO stays while supervisors come and
go. So do we, so that it never has an end: the output is complete when it is empty and all processes are gone. The file
is written at an offset that we keep (splice refuses O_APPEND); a successor goes on at the file's end.

Beside the file lies a time index: records of 16 bytes, little endian, `u64 offset, u64 nanoseconds since the epoch`,
at most one each 100 ms: "from this offset on, the bytes were written at this time". It is what reading by time
and merging over ranks rest on, and it may be lost without harm to the output.

A file that has become large is rotated (rotation.py), and one that somebody has deleted is made anew. Offsets, in the
index too, are those of all output ever (log_segments.py).
"""

import contextlib
import errno
import fcntl
import os
import struct
import sys
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supervisors.log_layout import Folder, Layout
from supervisors.log_reader import Reader
from supervisors.log_removals import record_removal
from supervisors.rotation import LINE, open_log, rotate, take_over

#: Size of a rank's FIFO, and most bytes of one rank moved at a time: one rank's flood must not starve the others.
#: 128 KiB: with more the pages fall out of the processor's cache between write and splice (`make bench`, "output").
FIFO_SIZE = BATCH = 1 << 17
INDEX_INTERVAL_S = 0.1
INDEX_RECORD = struct.Struct("<QQ")
#: How often it is looked whether somebody has deleted the index.
INDEX_LOOK_S = 1.0
#: How long after an error the file is tried again; and how long after it could not be rotated.
RETRY_S, ROTATE_AGAIN_S = 1.0, 10.0
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
    is there (the daemon or a predecessor made it). Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    if (uid, gid) != (os.geteuid(), os.getegid()):
        os.chown(path, uid, gid, follow_symlinks=False)


def open_reader(path: Path) -> int:
    """A read end, to hold or to drain; never blocks. Raises OSError.

    Opened for writing too: a FIFO of which somebody is a writer has no end, so that a writer that comes later finds the
    reader still there, and a poll on it is never ready for the mere absence of writers.
    """
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


class LostCounter:
    """Keeps what is lost of each rank's output in a small file, so that a successor knows of a gap that is still open.

    Per rank 24 bytes, little endian: `u64 lost`, `u64 told` (how much of it a gap line tells), `f64 since` (of the open
    gap, seconds since the epoch). Made with all its bytes before the ranks start: it needs no room later.
    """

    RECORD = struct.Struct("<QQd")

    def __init__(self, path: Path, ranks: int) -> None:
        """Raises OSError where it cannot be made."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        size = os.fstat(self._fd).st_size
        missing = ranks * self.RECORD.size - size
        if missing > 0 and os.pwrite(self._fd, bytes(missing), size) < missing:
            os.close(self._fd)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def load(self, index: int) -> tuple[int, int, float]:
        """Lost, told, since."""
        lost, told, since = self.RECORD.unpack(os.pread(self._fd, self.RECORD.size, index * self.RECORD.size))
        return lost, told, since

    def store(self, index: int, lost: int, told: int, since: float) -> None:
        """Best effort: a count that cannot be kept must not stop the output."""
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, self.RECORD.pack(lost, told, since), index * self.RECORD.size)

    def close(self) -> None:
        os.close(self._fd)


class RankLog:
    """Drains one FIFO into one file."""

    def __init__(
        self,
        fifo: Path,
        log: Path,
        index: Path,
        owner: tuple[int, int],
        counter: LostCounter,
        slot: int,
        layout: Layout | None = None,
        limit: Callable[[], int] = lambda: 0,
        rotated: Callable[[], None] = lambda: None,
    ) -> None:
        """Opens everything; the file goes on at its end. `owner`: uid and gid of new files. `slot`: the rank's place in
        `counter`. `layout`: how the log lies there now, if the caller has looked. `limit` says after how many bytes the
        file is to be rotated (0: never), and `rotated` is told of it. Raises OSError where FIFO or file cannot be
        opened."""
        self._counter, self._slot = counter, slot
        self.path, self._index_path, self._owner = log, index, owner
        self._limit_now, self._limit, self._rotate_at, self._rotated = limit, sys.maxsize, 0.0, rotated
        self._index, self._index_look = -1, 0.0  # made with the first output
        self._fds: list[int] = []
        try:
            self.fd = self._keep(open_reader(fifo))
            with contextlib.suppress(OSError):  # over the user's limit for pipes: the kernel's default size serves too
                fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, FIFO_SIZE)
            # Where the file begins in all output ever; `_offset` is where it ends in itself.
            self._base = take_over(log, layout if layout is not None else Folder(log.parent).look([log])[0])
            self._file = self._keep(open_log(log, owner, os.O_RDWR))
            self._offset = os.fstat(self._file).st_size
        except OSError:
            self.close()
            raise
        self._indexed = 0.0
        self._splice = True
        self._retry_at = 0.0
        self._lost, self._told, since = counter.load(slot)
        # A predecessor was killed while output was being lost.
        self._gap = (
            Gap(since, "the file could not be written", self._lost - self._told) if self._lost > self._told else None
        )

    @property
    def stalled(self) -> bool:
        """True while output is being lost."""
        return self._gap is not None

    @property
    def offset(self) -> int:
        """Bytes of output so far, in whatever files they are or were."""
        return self._base + self._offset

    def mark(self, text: str) -> None:
        """Writes a line of muster's own into the file, behind what is there. Best effort."""
        data = f"[muster: {text}]\n".encode()
        with contextlib.suppress(OSError):
            self._fall_back(os.fstat(self._file).st_size)
            last = os.pread(self._file, 256, max(0, self._offset - 256)).rstrip(b"\n").rpartition(b"\n")[2]
            if last.startswith(b"[muster: " + b" ".join(text.encode().split()[:2]) + b" "):
                return  # a predecessor wrote it, and died before the ranks were let go
            if self._offset and os.pread(self._file, 1, self._offset - 1) != b"\n":
                data = b"\n" + data
            written = os.pwrite(self._file, data, self._offset)
            if written == len(data):
                self._offset += written
            else:
                os.ftruncate(self._file, self._offset)

    def drain(self) -> Gap | None:
        """Moves what is there, at most BATCH bytes. Returns the gap that was closed by a line in the file, if any."""
        closed = self.resume()
        with contextlib.suppress(BlockingIOError):
            self._move()
        return closed

    def drain_all(self, deadline: float) -> list[Gap]:
        """Empties the FIFO, until `deadline` (time.monotonic()) at most. Returns the gaps closed meanwhile."""
        closed = [self.resume(force=True)]
        try:
            while time.monotonic() < deadline:
                self._move()
        except BlockingIOError:
            pass
        closed.append(self.resume(force=True))
        return [gap for gap in closed if gap is not None]

    def resume(self, force: bool = False) -> Gap | None:
        """Tries to close a gap: writes its line. Returns it, or None where there is none or the file still refuses."""
        now = time.monotonic()
        if self._gap is None or (now < self._retry_at and not force):
            return None
        self._retry_at = now + RETRY_S
        self._look()  # the room may come from this very file
        gap = self._gap
        if not gap.bytes:  # refused, but nothing had to be thrown away yet
            self._gap = None
            return None
        gap.until = time.time()
        data = gap.line().encode()
        try:
            if self._offset and os.pread(self._file, 1, self._offset - 1) != b"\n":
                data = b"\n" + data
            written = os.pwrite(self._file, data, self._offset)
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._offset)
            return None
        self._offset += len(data)
        self._settle_gap()
        return gap

    def abandon(self) -> Gap | None:
        """The gap whose line could not be written to the end, if any: only the journal can tell of it then."""
        gap = self._gap
        if gap is None or not gap.bytes:
            return None
        gap.until = time.time()
        self._settle_gap()
        return gap

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def _keep(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    def _move(self) -> None:
        """One batch into the file, or, in a gap, away. Raises BlockingIOError where the FIFO is empty."""
        if self._gap is not None:
            self._lose()
            return
        now = time.monotonic()
        due = now - self._indexed >= INDEX_INTERVAL_S
        try:
            if due:
                self._look()
                limit = self._limit_now()
                self._limit = max(limit, LINE) if limit and now >= self._rotate_at else sys.maxsize
            else:  # between two looks somebody may have cut it: where it has ended before, a hole would begin
                due = self._fall_back(os.fstat(self._file).st_size)
            start = self._offset
            self._offset += self._splice_once() if self._splice else self._copy_once()
        except BlockingIOError:
            raise
        except OSError as error:
            if self._splice and error.errno in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                self._splice = False  # a file system without splice
                self._move()
                return
            self._open_gap(error)
            return
        if due and self._offset > start:
            self._indexed = now
            self._note(self._base + start)
        if self._offset >= self._limit and self._gap is None:
            self._rotate()

    def _look(self) -> None:
        """Whether somebody has cut the file: it goes on at its end rather than with a hole. Or deleted it: a new one
        goes on, and it is recorded what is lost. Best effort."""
        with contextlib.suppress(OSError):
            stat = os.fstat(self._file)
            if stat.st_nlink:
                self._fall_back(stat.st_size)
                return
            end = self.offset
            os.ftruncate(self._file, 0)  # gives back its room, which the rest may need
            os.ftruncate(self._file, self._offset)
            if end > self._base:
                record_removal(self.path, self._base, end, "somebody deleted the file while it was written")
            self._go_on_in(open_log(self.path, self._owner, os.O_RDWR), end)
            self._offset = os.fstat(self._file).st_size

    def _fall_back(self, size: int) -> bool:
        """To where the file ends, if somebody has cut it. Returns whether. Records of bytes that are gone go too, and
        before others come: in an index that does not rise no time is found. What comes next has a record at once."""
        if size >= self._offset:
            return False
        self._offset = size
        self._indexed = 0.0
        with contextlib.suppress(OSError):
            self._open_index()
            self._cut_index(self.offset)
        return True

    def _rotate(self) -> None:
        """Best effort: what cannot be rotated is written on."""
        self._look()
        if self._offset < self._limit:
            return
        try:
            made, cut = rotate(self.path, self._file, self._base, self._offset, self._owner)
        except OSError:
            self._limit, self._rotate_at = sys.maxsize, time.monotonic() + ROTATE_AGAIN_S
            return
        self._go_on_in(made, self._base + cut)
        self._offset -= cut
        self._rotated()

    def _go_on_in(self, file: int, base: int) -> None:
        self._fds[self._fds.index(self._file)] = file
        os.close(self._file)
        self._file, self._base = file, base

    def _splice_once(self) -> int:
        return os.splice(self.fd, self._file, BATCH, offset_dst=self._offset, flags=os.SPLICE_F_NONBLOCK)

    def _copy_once(self) -> int:
        """Without splice there is a moment in which the bytes are only in our memory: what a full disk refuses then is
        counted as lost, and a supervisor killed in that moment loses them (docs/logs.md)."""
        data = os.read(self.fd, BATCH)
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._offset + written)
        except OSError as error:
            self._open_gap(error)
            self._count(len(data) - written)
        return written

    def _open_gap(self, error: OSError) -> None:
        self._gap = Gap(time.time(), error.strerror or str(error))
        self._retry_at = time.monotonic() + RETRY_S

    def _lose(self) -> None:
        self._count(len(os.read(self.fd, BATCH)))

    def _count(self, size: int) -> None:
        assert self._gap is not None
        self._gap.bytes += size
        self._lost += size
        self._counter.store(self._slot, self._lost, self._told, self._gap.since)

    def _settle_gap(self) -> None:
        self._gap = None
        self._told = self._lost
        self._counter.store(self._slot, self._lost, self._told, 0.0)

    def _note(self, offset: int) -> None:
        record = INDEX_RECORD.pack(offset, time.time_ns())
        with contextlib.suppress(OSError):  # no room for the index: times become coarser, the output goes on
            if self._index >= 0 and (now := time.monotonic()) >= self._index_look:
                self._index_look = now + INDEX_LOOK_S
                if not os.fstat(self._index).st_nlink:  # somebody has deleted it
                    self._drop_index()
            if self._index < 0:
                self._open_index()
                self._cut_index(offset)  # the file may have been cut while nobody wrote it
            if os.write(self._index, record) < len(record):
                self._whole_records()

    def _open_index(self) -> None:
        if self._index < 0:
            self._index = self._keep(open_log(self._index_path, self._owner, os.O_RDWR | os.O_APPEND))
            self._whole_records()

    def _drop_index(self) -> None:
        self._fds.remove(self._index)
        os.close(self._index)
        self._index = -1

    def _cut_index(self, end: int) -> None:
        """To its records of bytes before `end`."""
        size = os.fstat(self._index).st_size

        def offset(number: int) -> int:
            data = os.pread(self._index, INDEX_RECORD.size, number * INDEX_RECORD.size)
            return int(INDEX_RECORD.unpack(data)[0]) if len(data) == INDEX_RECORD.size else end

        kept = bisect_left(range(size // INDEX_RECORD.size), end, key=offset) * INDEX_RECORD.size
        if kept < size:
            os.ftruncate(self._index, kept)

    def _whole_records(self) -> None:
        size = os.fstat(self._index).st_size
        if size % INDEX_RECORD.size:
            os.ftruncate(self._index, size - size % INDEX_RECORD.size)


def tail(path: Path) -> tuple[str, ...]:
    """The last lines of a log, at most 20 of at most 4 KiB in all; none where it cannot be read."""
    try:
        with Reader(Folder(path.parent)) as reader:
            layout = reader.layout(path)
            start, data = reader.stretch(path, max(layout.begin, layout.end - _TAIL_BYTES), layout.end)
    except OSError:
        return ()
    lines = data.decode("utf-8", "replace").splitlines()
    return tuple(lines[1 if start > layout.begin and len(lines) > 1 else 0 :][-_TAIL_LINES:])
