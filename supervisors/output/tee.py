"""From a rank's FIFO into its file, by splice(2), without ever blocking or breaking the rank.

The rank opens the FIFO read-write, so it never gets SIGPIPE, and the content stays while supervisors come and go. The
supervisor opens it read-write too, so it never sees an end of file: the output is complete when the FIFO is empty and
all processes have exited.

The file is a `LogFile`, an `IndexWriter` records the times of its bytes. The supervisor reads output that it cannot
write and counts it in a gap (gaps.py) until the file can be written again.
"""

import contextlib
import errno
import fcntl
import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from muster.supervisors.model.job_logs import OWN_LINE
from muster.supervisors.output.gaps import Counts, Gap
from muster.supervisors.output.log_file import Claims, LogFile
from muster.supervisors.output.log_layout import Folder, Layout
from muster.supervisors.output.log_reader import Reader
from muster.supervisors.output.splicing import Splice
from muster.supervisors.output.time_index import INDEX_INTERVAL_S, IndexWriter

#: Size of a rank's FIFO, and most bytes of one rank moved at a time: one rank's flood must not starve the others. With
#: 512 KiB a byte costs four fifths of the CPU time that it costs with 128 KiB, and with 1 MiB as much as with 512
#: (`benchmarks movers`).
FIFO_SIZE = BATCH = 1 << 19
#: Of many ranks the FIFOs are smaller, down to SMALL_FIFO: full ones of a job take ALL_FIFOS or that. Users who are not
#: root have 64 MiB for all their pipes (pipe-user-pages-soft), and then FIFOs of 4 KiB.
SMALL_FIFO, ALL_FIFOS = 1 << 17, 1 << 25
#: Most bytes that pass through our memory at a time, where there is no splice.
_COPIED = 1 << 17
#: Seconds after an error until the file is tried again.
RETRY_S = 1.0
#: A file system may keep whole seconds, or every other one.
_COARSE_NS = 2_000_000_000
_TAIL_BYTES = 4096
_TAIL_LINES = 20


def make_fifo(path: Path, uid: int, gid: int) -> None:
    """Creates the FIFO of a rank, owned by the job's user so that the rank can open /dev/stdout again. Keeps one that
    is there (the daemon or a predecessor made it). Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    if (uid, gid) != (os.geteuid(), os.getegid()):
        os.chown(path, uid, gid, follow_symlinks=False)


def fifo_size(ranks: int) -> int:
    """Of each rank of a job."""
    return max(SMALL_FIFO, min(FIFO_SIZE, 1 << (ALL_FIFOS // max(ranks, 1)).bit_length() - 1))


def open_reader(path: Path) -> int:
    """A read end, to hold or to drain; never blocks. Raises OSError.

    Opened for writing too: a FIFO of which somebody is a writer has no end, so that a writer that comes later finds the
    reader still there, and a poll on it is never ready for the mere absence of writers.
    """
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


class RankLog:
    """Drains one FIFO into one file."""

    def __init__(
        self,
        fifo: Path,
        log: Path,
        index: Path,
        owner: tuple[int, int],
        counts: Counts,
        slot: int,
        layout: Layout | None = None,
        limit: Callable[[], int] = lambda: 0,
        rotated: Callable[[], None] = lambda: None,
        claims: Claims | None = None,
        fifo_size: int = FIFO_SIZE,
        within: int | None = None,
    ) -> None:
        """Opens the FIFO and the file, which goes on at its end; a file that cannot be opened is a gap.

        `owner`: uid and gid of new files. `slot`: the rank's place in `counts`. `layout`: how the log lies on disk, if
        the caller has looked. `limit`: after how many bytes the file is rotated (0: never); `rotated` is called
        afterwards. `claims`: see LogFile. `fifo_size`: what is asked for. `within`: see LogFile.open.
        Raises OSError where the FIFO cannot be opened.
        """
        self.path = log
        self._counts, self._slot, self._count = counts, slot, counts[slot]
        self.fd = open_reader(fifo)
        for size in (fifo_size, SMALL_FIFO):
            with contextlib.suppress(OSError):  # over the user's limit for pipes: the kernel's default size serves too
                fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, size)
                break
        self._file = LogFile(log, owner, self._count.end, limit, rotated, claims, self._count.inode)
        self._index = IndexWriter(index, owner)
        self._indexed = 0.0
        self._splice = True
        self.retry_at = 0.0
        self._sink = counts.sink(slot)
        #: The gap that is open: a predecessor's, if it was killed while output was lost.
        self._gap = self._take_gap()
        try:
            known = self._count.end
            self._file.open(layout, within=within)
            self._find_line(known)
            self._store_end()  # before the first byte, too: a successor knows our file by its inode
        except OSError as error:
            self._file.look_for_loss()
            if self._gap is None:
                self._open_gap(error)

    @property
    def gap(self) -> Gap | None:
        """The gap that is open now: output is being lost, or will be with the next byte."""
        return self._gap

    @property
    def stalled(self) -> bool:
        """Whether a gap is open."""
        return self._gap is not None

    @property
    def lost(self) -> int:
        """Bytes that could not be written, ever."""
        return self._count.lost

    @property
    def displaced(self) -> OSError | None:
        """Why the file under the log's name cannot be opened, while output continues in the file that was moved
        away."""
        return self._file.displaced

    @property
    def taken(self) -> str:
        """Why output is missing that somebody took away; empty: none is known to be."""
        return self._file.taken

    @property
    def offset(self) -> int:
        """Bytes of output so far, in whatever files they are or were; -1 where that is not known."""
        return self._file.offset

    def mark(self, text: str) -> None:
        """Writes a line of muster's own into the file, behind what it holds. Best effort."""
        if self._file.fd < 0:
            return
        with contextlib.suppress(OSError):
            self._file.check()
            if self._file.last_line().startswith(f"{OWN_LINE}{' '.join(text.split()[:2])} ".encode()):
                return  # a predecessor wrote it, and died before the ranks were let go
            self._file.append(f"{OWN_LINE}{text}]\n".encode())
            self._store_end()

    def drain(self) -> Gap | None:
        """Moves what the FIFO holds, at most BATCH bytes. Returns the gap that was closed by a line in the file, if
        any."""
        closed = self.resume()
        with contextlib.suppress(BlockingIOError):
            self._move()
        return closed

    def begin_drain(self) -> tuple[Splice | None, Gap | None]:
        """As `drain`, up to the splice, which is for the caller to carry out before `end_drain`; None: there is none,
        and all is done."""
        closed = self.resume()
        if self._gap is None and self._splice:
            return self._prepare(), closed
        with contextlib.suppress(BlockingIOError):
            self._move()
        return None, closed

    def end_drain(self, splice: Splice) -> None:
        """The splice was carried out."""
        with contextlib.suppress(BlockingIOError):
            self._finish(splice)

    def drain_all(self, deadline: float) -> list[Gap]:
        """Empties the FIFO, until `deadline` (time.monotonic()) at most. Returns the gaps closed meanwhile."""
        closed = [self.resume(force=True)]
        try:
            while time.monotonic() < deadline:
                self._move()
        except BlockingIOError:
            pass
        if self._gap is None:  # somebody may have taken the file away since the last look
            try:
                self._file.check()
            except OSError as error:
                self._open_gap(error)
        closed.append(self.resume(force=True))
        return [gap for gap in closed if gap is not None]

    def resume(self, force: bool = False) -> Gap | None:
        """Tries to close a gap: opens the file, and writes the gap's line. Returns the gap, or None where none is open
        or the file still refuses."""
        now = time.monotonic()
        if self._gap is None or (now < self.retry_at and not force):
            return None
        self.retry_at = now + RETRY_S
        gap = self._gap
        try:
            if self._file.fd < 0:
                self._file.open()
            else:
                self._file.check()  # the room may come from this very file
            if not gap.bytes:  # refused, but nothing was thrown away
                self._settle_gap()
                return None
            gap.until = time.time()
            self._file.append(gap.line().encode())
        except OSError as error:
            gap.until = 0.0
            gap.error, gap.number = error.strerror or str(error), error.errno or 0
            return None
        self._settle_gap()
        self._store_end()
        return gap

    def abandon(self) -> Gap | None:
        """Ends the gap whose line could not be written to the end, if any: only the journal can tell of it then. What
        was taken of a file that could not be opened again is recorded, too, also where nothing came behind it."""
        if self._file.fd < 0:
            self._file.give_up()
        gap = self._gap
        if gap is None or not gap.bytes:
            return None
        gap.until, gap.line_missing = time.time(), True
        self._settle_gap()
        return gap

    def close(self) -> None:
        """Closes FIFO and file. Only once."""
        os.close(self.fd)
        self._sink.close()
        self._file.close()
        self._index.close()

    def _move(self) -> None:
        """One batch into the file, or, in a gap, away. Raises BlockingIOError where the FIFO is empty."""
        if self._gap is not None:
            self._lose()
            return
        splice = self._prepare()
        if splice is None:
            return
        if self._splice:
            splice.run()
        else:
            try:
                splice.moved = self._copy_once()
            except OSError as error:
                splice.error = error
        self._finish(splice)

    def _prepare(self) -> Splice | None:
        """The next batch into the file; None: there is a gap now."""
        file, now = self._file, time.monotonic()
        due = now - self._indexed >= INDEX_INTERVAL_S
        try:
            if due:
                file.check()
                file.read_limit(now)
            elif file.cut:
                file.check()
                due = True
        except OSError as error:
            self._open_gap(error)
            return None
        count = min(BATCH, max(SMALL_FIFO, file.room))  # a file is hardly larger than its limit
        return Splice(self.fd, file.fd, file.position, count, file.offset, due)

    def _finish(self, splice: Splice) -> None:
        """Accounts for a batch. Raises BlockingIOError where the FIFO was empty."""
        file, failure = self._file, splice.error
        if failure is not None:
            if isinstance(failure, BlockingIOError):
                raise failure
            if self._splice and failure.errno in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                self._splice = False  # a file system without splice
                self._move()
            else:
                self._open_gap(failure)
            return
        file.wrote(splice.moved)
        self._store_end()
        if splice.due and splice.moved:
            self._indexed = time.monotonic()
            self._index.note(splice.start)
        if file.is_full and self._gap is None:
            try:
                file.rotate()
            except OSError as error:
                self._open_gap(error)

    def _copy_once(self) -> int:
        """Without splice there is a moment in which the bytes are only in our memory: what a full disk refuses then is
        counted as lost, and a supervisor killed in that moment loses them (docs/concepts/logs.md)."""
        data = os.read(self.fd, _COPIED)
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._file.fd, data[written:], self._file.position + written)
        except OSError as error:
            self._open_gap(error)
            self._sink.add(len(data) - written)
            self._lost(len(data) - written)
        return written

    def _take_gap(self) -> Gap | None:
        """The gap in which a predecessor was killed: what it threw away at last may be in the sink alone."""
        count = self._count
        if count.since:
            count.lost = max(count.lost, count.told + self._sink.left())
        gap = count.open_gap
        if gap is not None:
            self._counts.store(self._slot)
            self._sink.begin(gap.bytes)
        else:
            count.since = 0.0
        return gap

    def _find_line(self, known: int) -> None:
        """A predecessor may have been killed between the line of its gap and the count: the line is behind all that it
        knew to be in the file, `known` (-1: nothing). Raises OSError."""
        gap = self._gap
        if gap is None or self._file.offset <= max(known, 0):
            return
        if self._file.last_line().startswith(gap.begin().encode()):
            self._settle_gap()
            self._store_end()

    def _open_gap(self, error: OSError) -> None:
        gap = self._gap = Gap.of(error)
        self.retry_at = time.monotonic() + RETRY_S
        self._sink.begin()
        self._count.since, self._count.number = gap.since, gap.number
        self._counts.store(self._slot)

    def _lose(self) -> None:
        self._lost(self._sink.take(self.fd))

    def _lost(self, size: int) -> None:
        assert self._gap is not None
        self._gap.bytes += size
        self._count.lost += size
        self._count.since, self._count.number = self._gap.since, self._gap.number
        self._counts.store(self._slot)

    def _settle_gap(self) -> None:
        self._gap = None
        self._count.told, self._count.since, self._count.number = self._count.lost, 0.0, 0
        self._counts.store(self._slot)
        self._sink.end()

    def _store_end(self) -> None:
        """Where the output ends, for a successor that finds less than that."""
        self._count.end, self._count.inode = self._file.offset, self._file.inode
        self._counts.store_end(self._slot)


def took_its_last(fifo: Path, log: Path) -> bool:
    """Whether a process that has ended took output with it: its last write into the FIFO is younger than the last into
    its log, and the FIFO is empty. That happens where nobody else had the FIFO open. Must be asked before anything is
    read or written. Raises OSError."""
    written, stored = os.stat(fifo).st_mtime_ns, os.stat(log).st_mtime_ns
    if written <= stored or (not stored % 1_000_000_000 and written - stored < _COARSE_NS):
        return False
    fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        look = select.poll()
        look.register(fd, select.POLLIN)
        return not any(events & select.POLLIN for _, events in look.poll(0))
    finally:
        os.close(fd)


def tail(path: Path) -> tuple[str, ...]:
    """The last lines of a log, at most 20 of at most 4 KiB in all; none where it cannot be read."""
    try:
        with Reader(Folder(path.parent)) as reader:
            layout = reader.layout(path)
            start, data = reader.stretch(path, max(layout.begin, layout.end - _TAIL_BYTES), layout.end)
    except OSError:
        return ()
    return last_lines(data, cut=start > layout.begin)


def last_lines(data: bytes, *, cut: bool) -> tuple[str, ...]:
    """As `tail`, of the end of a log. `cut`: other bytes come before."""
    cut |= len(data) > _TAIL_BYTES
    lines = data[-_TAIL_BYTES:].decode("utf-8", "replace").splitlines()
    return tuple(lines[1 if cut and len(lines) > 1 else 0 :][-_TAIL_LINES:])
