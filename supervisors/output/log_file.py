"""The destination of a log: its live file, or the reason why there is none at the moment.

A start, a takeover, a rotation, and a file that was deleted, moved or truncated all go through `LogFile.open`: it opens
the file under the log's name, then records which output is missing, then releases the old file. If a step fails, the
old file stays in use as long as it has a name; otherwise the log is closed, its output is counted in a gap (tee.py),
and `open` is tried again.

The supervisor writes at an offset that it keeps itself (splice refuses O_APPEND). Offsets count all output ever
(log_segments.py): a file that was emptied continues at its beginning, and its next byte has the offset that it would
have had.
"""

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

from muster.supervisors.output.gaps import no_room
from muster.supervisors.output.log_layout import NEVER_ROTATED, Folder, Layout
from muster.supervisors.output.log_removals import record_removal
from muster.supervisors.output.log_segments import segment_path
from muster.supervisors.output.rotation import LINE, make_new, open_log, opened, put_new, rotate, take_over

#: Seconds after which a rotation that failed is tried again.
ROTATE_AGAIN_S = 10.0
#: Why output is missing that somebody took away; `removals` records it, and readers report it as lost.
DELETED = "somebody deleted the file while it was written"
MOVED = "somebody moved the file away while it was written"
CUT = "somebody truncated the file while it was written"
_LOW = 0xFFFFFFFF
#: So many files that were moved away are known again.
_EARLIER = 16

#: Files by device and inode, and the log that is written into each.
Claims = dict[tuple[int, int], Path]


class LogFile:
    """One log on disk. Only the process that holds the job's lock writes it."""

    def __init__(
        self,
        path: Path,
        owner: tuple[int, int],
        end: int = -1,
        limit: Callable[[], int] = lambda: 0,
        rotated: Callable[[], None] = lambda: None,
        claims: Claims | None = None,
        inode: int = 0,
    ) -> None:
        """Opens nothing yet. `owner`: uid and gid of new files. `end`: bytes of output that a predecessor wrote, ever;
        -1: not known. `limit`: after how many bytes the file is rotated (0: never); `rotated` is called afterwards.
        `claims`: which files the logs of this job are written into; each of them has a file of its own. `inode`: as
        below, of the file that a predecessor wrote."""
        self.path = path
        self._claims: Claims = {} if claims is None else claims
        #: This log's own entry there.
        self._claimed: tuple[int, int] | None = None
        #: The low 32 bits of the inode of the file that was written last; 0: not known.
        self.inode = inode
        #: Files that were written before that one, and left: the low 32 bits of the inode -> where our output ends in
        #: it. The user who moved a file away may move it back.
        self._earlier: dict[int, int] = {}
        #: -1: the log is closed.
        self.fd = -1
        #: Why output is missing that was recorded last, if any is: DELETED, MOVED or CUT.
        self.taken = ""
        #: Why the file under the log's name cannot be opened, while output continues in the file that had the name.
        self.displaced: OSError | None = None
        #: What happened to the file that was written so far, while the one under the log's name cannot be opened.
        self._missing = ""
        self._owner, self._end = owner, end
        self._base = self._offset = 0
        self._limit_now, self._limit, self._rotate_at, self._rotated = limit, sys.maxsize, 0.0, rotated

    @property
    def offset(self) -> int:
        """Bytes of output so far, in whatever files they are or were; -1 where that is not known."""
        return self._end if self.fd < 0 else self._base + self._offset

    @property
    def position(self) -> int:
        """Where the next byte goes in the file itself."""
        return self._offset

    def wrote(self, count: int) -> None:
        """So many bytes were written at `position`."""
        self._offset += count

    def open(self, layout: Layout | None = None, why: str = "", within: int | None = None) -> None:
        """Opens the file under the log's name, or makes it; it goes on at its end. Raises OSError, with all as before.

        `layout`: how the log lies on disk, if the caller has looked. `why`: what happened to the file that was
        written so far; output that is missing from the new one is recorded as removed for this reason. `within`: a
        descriptor of the folder, if the caller has one for several logs.
        """
        if layout is None:
            os.stat(self.path.parent)  # of a folder that was moved away nothing is known
            layout = Folder(self.path.parent).look([self.path])[0]
        end = self.offset
        with opened(self.path.parent, within) as folder:
            # Of a new log nobody was killed in the middle of anything.
            base = 0 if layout is NEVER_ROTATED else take_over(self.path, layout, folder)
            existed = end > 0 and os.path.lexists(self.path)
            fd = open_log(self.path, self._owner, os.O_RDWR, folder)
        try:
            found = self._refuse_shared(fd)
            size = found.st_size
            taken = ""
            was = self._earlier.get(found.st_ino & _LOW, 0)
            if why in (DELETED, MOVED) and base < was <= min(end, base + size):  # one of ours came back
                size = was - base
                if was < end:
                    taken = why
                    fd, base, size = self._without(fd, base, size, end, taken)
            elif why in (DELETED, MOVED):  # none of what the new file holds was our output
                if base < end:
                    taken = why
                    record_removal(self.path, base, end, why, lost=True)
                base = max(base, end)
            elif base + size < end:
                ours = existed and self.inode in (0, found.st_ino & _LOW)
                taken = CUT if why or ours else DELETED
                fd, base, size = self._without(fd, base, size, end, taken)
        except OSError:
            os.close(fd)
            raise
        self.close()
        self._remember(end)
        self._claim(fd)
        self.fd, self._base, self._offset, self.displaced, self._missing = fd, base, size, None, ""
        self.taken = taken or self.taken

    def _refuse_shared(self, fd: int) -> os.stat_result:
        """Raises OSError where another log is written into the same file, by whatever name: each would overwrite what
        the other wrote. Another log of the job is known; a file with another name that is not the one that this log was
        written into may be another job's. Where it is not known which one that was, a name beside it tells: muster's
        logs and their segments lie in one folder, a user's second copy of a log lies elsewhere."""
        found = os.fstat(fd)
        other = self._claims.get((found.st_dev, found.st_ino), self.path)
        if other != self.path:
            what = f"is another name of {other.name}, which muster writes, too: remove this name"
            raise OSError(errno.EMLINK, what, str(self.path))
        if another := self._another(found):
            raise OSError(errno.EMLINK, f"is another name of {another}: remove this name", str(self.path))
        return found

    def _another(self, found: os.stat_result) -> str:
        """Which other file the one under the log's name is, if it is one that has names elsewhere. Raises OSError."""
        if found.st_nlink == 1 or self.inode == found.st_ino & _LOW:
            return ""
        return "a file that is not this log" if self.inode else self._name_beside(found.st_ino)

    def _name_beside(self, inode: int) -> str:
        """Another name of the file in the log's folder; empty where there is none."""
        with os.scandir(self.path.parent) as entries:
            names = (entry.name for entry in entries if entry.inode() == inode and entry.name != self.path.name)
            return next(names, "")

    def _claim(self, fd: int) -> None:
        found = os.fstat(fd)
        self._release()
        self._claimed = found.st_dev, found.st_ino
        self._claims[self._claimed] = self.path
        self.inode = found.st_ino & _LOW

    def _remember(self, end: int) -> None:
        """The file that was written so far, up to `end`, is left for another."""
        self._earlier.pop(self.inode, None)
        if self.inode and end > 0:
            self._earlier[self.inode] = end
        while len(self._earlier) > _EARLIER:
            del self._earlier[next(iter(self._earlier))]

    def _release(self) -> None:
        if self._claimed is not None and self._claims.get(self._claimed) == self.path:
            del self._claims[self._claimed]
        self._claimed = None

    def _without(self, fd: int, base: int, size: int, end: int, why: str) -> tuple[int, int, int]:
        """Goes on behind output that is missing: all from `base` + `size` to `end`. Returns descriptor, base and size
        of the live file. Raises OSError, with `fd` still open."""
        made = fd
        if size:  # what is left becomes a segment: the live file begins behind what is missing
            with opened(self.path.parent) as folder:
                made = make_new(folder, self.path, self._owner)
                try:
                    put_new(folder, self.path, segment_path(self.path, base, base + size))
                except OSError:
                    os.close(made)
                    raise
        try:
            record_removal(self.path, base + size, end, why, lost=True)
        except OSError:
            if made != fd:
                os.close(made)
            raise
        if made != fd:
            os.close(fd)
        return made, end, 0

    def close(self) -> None:
        """Closes the file; `offset` stays known."""
        if self.fd >= 0:
            self._end = self.offset
            os.close(self.fd)
            self._release()
        self.fd = -1

    def check(self) -> None:
        """Goes on with the file under the log's name if that is another than ours, or if ours was cut.

        Raises OSError where there is none that could be written; the log is closed then, or ours stays where it is
        still somebody's (`displaced`).
        """
        ours = os.fstat(self.fd)
        why = ""
        try:
            found = os.stat(self.path, follow_symlinks=False)
            if (found.st_dev, found.st_ino) != (ours.st_dev, ours.st_ino):
                why = MOVED if ours.st_nlink else DELETED
        except OSError:
            why = MOVED if ours.st_nlink else DELETED
        if not why and ours.st_size >= self._offset:
            self.displaced = None
            return
        try:
            if not ours.st_nlink:
                # Nobody can read it any more: its room is given back at once, which the new file may need.
                with contextlib.suppress(OSError):
                    os.ftruncate(self.fd, 0)
            self.open(why=why or CUT)
        except OSError as error:
            if why != MOVED:
                self.close()
                self._lack(why)
                raise
            self.displaced = error

    def give_up(self) -> None:
        """Nobody tries any more to open the log, which is closed: what somebody took of it is recorded all the same.
        Best effort: where that cannot be written, `taken` tells."""
        self.look_for_loss()
        if not self._missing or self._end <= 0:
            return
        with contextlib.suppress(OSError):
            # What is under the log's name is not our output; it begins behind the last that lies elsewhere.
            layout = Folder(self.path.parent).look([self.path])[0]
            base = max([layout.begin, *(piece.end for piece in layout.segments)])
            if base < self._end:
                record_removal(self.path, base, self._end, self._missing, lost=True)
        self.taken, self._missing = self._missing, ""

    def look_for_loss(self) -> None:
        """Of a log that could not be opened: whether something else stands in the place of what was written before we
        came."""
        with contextlib.suppress(OSError):
            found = os.stat(self.path, follow_symlinks=False)
            if not self._missing and (not stat.S_ISREG(found.st_mode) or self._another(found)):
                self._lack(DELETED)

    def _lack(self, why: str) -> None:
        """Reports it from now on, and records it once the log can be opened."""
        self._missing = why
        if self._end > 0:
            self.taken = why

    @property
    def cut(self) -> bool:
        """Whether somebody made the file shorter than what was written of it: a write would leave a hole."""
        return os.fstat(self.fd).st_size < self._offset

    def append(self, data: bytes) -> None:
        """A line of muster's own at the end, on a line of its own; all of it, or nothing. Raises OSError."""
        if self._offset and os.pread(self.fd, 1, self._offset - 1) != b"\n":
            data = b"\n" + data
        try:
            if os.pwrite(self.fd, data, self._offset) < len(data):
                raise no_room(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, self._offset)
            raise
        self._offset += len(data)

    def last_line(self) -> bytes:
        """The last line of the output so far, at most 256 bytes."""
        return os.pread(self.fd, 256, max(0, self._offset - 256)).rstrip(b"\n").rpartition(b"\n")[2]

    def read_limit(self, now: float) -> None:
        """Takes the limit from the settings; `now`: time.monotonic()."""
        limit = self._limit_now()
        self._limit = max(limit, LINE) if limit and now >= self._rotate_at else sys.maxsize

    @property
    def room(self) -> int:
        """Bytes up to the limit."""
        return self._limit - self._offset

    @property
    def is_full(self) -> bool:
        """Whether it is to be rotated."""
        return self._offset >= self._limit

    def rotate(self) -> None:
        """Rotates the file. What cannot be rotated is written on, and tried again later. Raises OSError as `check`."""
        self.check()
        if self.displaced is not None or not self.is_full:
            return
        try:
            made, cut = rotate(self.path, self.fd, self._base, self._offset, self._owner)
        except OSError:
            self._limit, self._rotate_at = sys.maxsize, time.monotonic() + ROTATE_AGAIN_S
            return
        os.close(self.fd)
        self._claim(made)
        self.fd = made
        self._base += cut
        self._offset -= cut
        self._rotated()
