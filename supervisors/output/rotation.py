"""Rotation of the file that a supervisor writes. A kill at any step loses and duplicates nothing.

    1  create <name>.new with the bytes after the cut     killed here: the successor deletes it
    2  rename <name> to <name>.<start>-<cut>              killed here: it gets its name back (`take_over`)
    3  rename <name>.new to <name>
    4  truncate <name>.<start>-<cut> at the cut           until then its name says that the rest does not count

Between 2 and 3 there is no live file: readers find the rest after the end of the segment (log_segments.py).
"""

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from muster.supervisors.output.log_layout import Folder, Layout
from muster.supervisors.output.log_removals import removals, remove
from muster.supervisors.output.log_segments import forget, new_path, segment_path
from muster.supervisors.system import trust

#: A line that is longer may be split.
LINE = 1 << 16


def rotate(log: Path, fd: int, start: int, size: int, owner: tuple[int, int]) -> tuple[int, int]:
    """Rotates the live file `fd`, whose first byte is the one at `start`, and of which `size` bytes are written.

    Returns a descriptor of the new live file, and how many bytes were rotated away; the old descriptor is left to the
    caller. Raises OSError, with the old one to be written on; `take_over` puts a name right that could not be.
    """
    with opened(log.parent) as folder:
        if os.stat(log.name, dir_fd=folder, follow_symlinks=False).st_ino != os.fstat(fd).st_ino:
            raise OSError(errno.ESTALE, "is another file by now", str(log))
        cut = _cut(fd, size)
        made = make_new(folder, log, owner)
        try:
            rest = os.pread(fd, size - cut, cut)
            if len(rest) < size - cut or os.write(made, rest) < len(rest):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(new_path(log)))
            put_new(folder, log, segment_path(log, start, start + cut))
        except BaseException:
            os.close(made)
            with contextlib.suppress(OSError):
                os.unlink(new_path(log).name, dir_fd=folder)
            raise
    with contextlib.suppress(OSError):
        os.ftruncate(fd, cut)
    return made, cut


@contextlib.contextmanager
def opened(folder: Path, given: int | None = None) -> Iterator[int]:
    """A descriptor of a folder for logs, by which files in it are named: a user who may rename the folder cannot lead
    us into another one between two steps. `given`: the one that the caller has, and keeps. Raises OSError."""
    if given is not None:
        yield given
        return
    fd = trust.open_logs(folder)
    try:
        yield fd
    finally:
        os.close(fd)


def make_new(folder: int, log: Path, owner: tuple[int, int]) -> int:
    """The next live file of a log, under another name; its descriptor. Raises OSError."""
    name = new_path(log).name
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    return _open_log(folder, log.with_name(name), owner, os.O_RDWR | os.O_EXCL)


def put_new(folder: int, log: Path, segment: Path) -> None:
    """The live file becomes a segment, the one of `make_new` the live file. Raises OSError, with all as before."""
    _rename(folder, log.name, segment.name)
    try:
        _rename(folder, new_path(log).name, log.name)
    except OSError:
        _rename(folder, segment.name, log.name)
        raise


def _rename(folder: int, name: str, to: str) -> None:
    os.rename(name, to, src_dir_fd=folder, dst_dir_fd=folder)


def take_over(log: Path, layout: Layout, within: int | None = None) -> int:
    """Finishes, or takes back, what a predecessor was killed in. Returns where the live file begins. `within`: the
    folder's descriptor, if the caller has it. Raises OSError."""
    with opened(log.parent, within) as folder:
        with contextlib.suppress(OSError):  # if it cannot be removed, nothing can be rotated, but everything written
            os.unlink(new_path(log).name, dir_fd=folder)
        for gone in removals(log)[-1:]:
            forget(log, gone.last, gone.end)
        if not layout.pieces:
            return layout.end
        last = layout.pieces[-1]
        if last.start != last.base:
            _rename(folder, last.path.name, log.name)
            return last.base
        if not last.inode:
            return layout.end
        for segment in layout.segments[-1:]:
            if not segment.packed:
                with contextlib.suppress(OSError):  # what is behind its end counts for nobody
                    _shorten(folder, segment.path.name, segment.end - segment.start)
        return last.base


def trim(folder: Folder, logs: Sequence[Path], most: int, among: Collection[str] | None = None, live: int = 0) -> None:
    """Removes the oldest segments of these logs until they and the live files, of which each counts as having `live`
    bytes at least, have at most `most` on the disk, or only live files are left. `among`: names of those that may go,
    without `.gz`; None: all. Raises OSError."""
    segments, total = [], 0
    for log, layout in zip(logs, folder.look(logs), strict=True):
        total += sum(max(piece.end - piece.start, live) for piece in layout.pieces[-1:] if piece.inode)
        for piece in layout.segments:
            with contextlib.suppress(FileNotFoundError):  # compressed at this moment: the next time
                found = os.stat(piece.path)
                total += found.st_size
                if among is None or piece.path.name.removesuffix(".gz") in among:
                    segments.append((found.st_mtime_ns, found.st_size, log, piece))
    segments.sort(key=lambda one: one[0])
    for _, size, log, piece in segments:
        if total <= most:
            return
        remove(log, piece, f"the job's logs may have {most} bytes (max_job_bytes)")
        total -= size


def open_log(path: Path, owner: tuple[int, int], flags: int, within: int | None = None) -> int:
    """Opens, or makes, a file of the job's user, for others to read as its group may. `within`: as in `take_over`.
    Raises OSError, also for what is no file, or has another name that may be somebody else's and would change hands
    with it."""
    with opened(path.parent, within) as folder:
        return _open_log(folder, path, owner, flags)


def _open_log(folder: int, path: Path, owner: tuple[int, int], flags: int) -> int:
    fd, may_be_given = trust.open_log(path.name, os.O_CREAT | flags, folder=folder)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        if owner not in ((found.st_uid, found.st_gid), (os.geteuid(), os.getegid())):
            if not may_be_given:
                return fd
            if found.st_nlink > 1:
                raise OSError(errno.EMLINK, "has another name, and belongs to another user", str(path))
            os.fchown(fd, *owner)
    except OSError:
        os.close(fd)
        raise
    return fd


def _shorten(folder: int, name: str, size: int) -> None:
    """A file, if it is longer than that, and no other under a planted name. Raises OSError."""
    fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_size > size:
            os.ftruncate(fd, size)
    finally:
        os.close(fd)


def _cut(fd: int, size: int) -> int:
    """Behind the last line that is ended, if that is near; or before the last byte: a writer that adds a line of its
    own sees by it that another is not ended yet."""
    start = max(0, size - LINE)
    found = os.pread(fd, size - start, start).rfind(b"\n")
    return start + found + 1 if found >= 0 else size - 1
