"""Compression of what was rotated away from a log, under the eyes of its readers."""

import contextlib
import errno
import os
from collections.abc import Generator
from pathlib import Path

from muster.supervisors.output import gzip_members
from muster.supervisors.output.log_removals import removals
from muster.supervisors.output.log_segments import Piece


def compress(log: Path, piece: Piece, level: int = 6) -> Generator[int, None, None]:
    """Puts a compressed segment in the place of a plain one (of `Layout.segments`), which readers may go on reading.

    Yields after each member how many bytes are done, so that it can be paced; whoever stops in the middle closes the
    generator, and nothing is left of it. Raises OSError, with the plain segment still there.
    """
    target = Path(f"{piece.path}.gz")
    part = Path(f"{target}.part")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()  # of one that was killed
    source = gzip_members.open_read(piece.path)
    try:
        stat = os.fstat(source)
        out = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with open(out, "wb", buffering=0) as file:
                done, size = 0, piece.end - piece.start
                while done < size:
                    data = os.pread(source, min(gzip_members.MEMBER, size - done), done)
                    if len(data) < min(gzip_members.MEMBER, size - done):
                        raise OSError(errno.EIO, "is shorter than its name says", str(piece.path))
                    member = memoryview(gzip_members.pack(data, level))
                    while member:
                        member = member[file.write(member) :]
                    done += len(data)
                    yield done
                if (stat.st_uid, stat.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(out, stat.st_uid, stat.st_gid)
                os.fchmod(out, stat.st_mode & 0o777)
                os.utime(out, ns=(stat.st_atime_ns, stat.st_mtime_ns))
                os.fsync(out)
            part.rename(target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                part.unlink()
            raise
    finally:
        os.close(source)
    try:
        piece.path.unlink()
        gone = any(record.start <= piece.start and piece.end <= record.end for record in removals(log))
    except FileNotFoundError:
        gone = True
    if gone:
        target.unlink(missing_ok=True)  # it was removed meanwhile, under its old name
