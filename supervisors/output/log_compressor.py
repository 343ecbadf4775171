"""Compression of rotated segments of a log, while readers read them."""

import contextlib
import errno
import os
from collections.abc import Generator
from pathlib import Path

from muster.supervisors.output import gzip_members
from muster.supervisors.output.log_removals import removals
from muster.supervisors.output.log_segments import Piece
from muster.supervisors.system import trust


def compress(log: Path, piece: Piece, level: int = 6) -> Generator[int, None, None]:
    """Puts a compressed segment in the place of a plain one (of `Layout.segments`), which readers may go on reading.

    Yields after each member how many bytes are done, so that it can be paced; a caller that stops in the middle closes
    the generator, and nothing is left of it. Raises OSError, with the plain segment still there.
    """
    # By descriptor: a folder that is renamed while this takes its time is no way into another.
    folder = trust.open_logs(piece.path.parent)
    try:
        yield from _compress(folder, log, piece, level)
    finally:
        os.close(folder)


def _compress(folder: int, log: Path, piece: Piece, level: int) -> Generator[int, None, None]:
    target = f"{piece.path.name}.gz"
    part = f"{target}.part"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part, dir_fd=folder)  # left by a killed compressor
    source = gzip_members.open_read(piece.path.name, folder)
    try:
        stat = os.fstat(source)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        out = os.open(part, flags, 0o600, dir_fd=folder)
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
            os.rename(part, target, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part, dir_fd=folder)
            raise
    finally:
        os.close(source)
    try:
        os.unlink(piece.path.name, dir_fd=folder)
        gone = any(record.start <= piece.start and piece.end <= record.end for record in removals(log))
    except FileNotFoundError:
        gone = True
    if gone:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target, dir_fd=folder)  # it was removed meanwhile, under its old name
