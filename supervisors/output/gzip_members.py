"""Compressed segments of logs: gzip files (zcat reads them) with a member for each MiB of output.

The extra field `MU` in the header of each member holds the member's size in the file, so a reader can skip to the
member that it needs.
"""

import errno
import os
import stat
import struct
import zlib
from array import array
from functools import lru_cache

#: Bytes of output in a member of a compressed segment.
MEMBER = 1 << 20
#: Inflated members that are kept, for reading as many logs at once (those of 16 ranks and their job's own), and parts
#: of BLOCK bytes, for reading more: 33 MiB at most. So a member is inflated once, or for each of its blocks, and not
#: for each of the many pieces in which logs are read that are merged by time.
MEMBERS, BLOCKS, BLOCK = 17, 256, 1 << 16
#: Id, deflate, "has an extra field", no time, no hint, Unix; length of the extra field; its only part: id, size, value.
_HEADER = struct.Struct("<2sBBIBBH2sHI")
_TRAILER = struct.Struct("<II")
#: No member is larger: the file may be its user's, who can write any size and any body into it.
_MOST = 2 * MEMBER


def pack(data: bytes, level: int) -> bytes:
    """A member with at most MEMBER bytes of output."""
    packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = packer.compress(data) + packer.flush()
    size = _HEADER.size + len(body) + _TRAILER.size
    header = _HEADER.pack(b"\x1f\x8b", 8, 4, 0, 0, 3, 8, b"MU", 4, size)
    return header + body + _TRAILER.pack(zlib.crc32(data), len(data))


def unpack(path: os.PathLike[str] | str, offset: int, count: int, size: int) -> bytes:
    """Output from `offset` in the file on, which has `size` bytes of it, at most up to the end of a block. Raises
    OSError."""
    name = os.fspath(path)
    status = os.stat(name)
    same = status.st_ino, status.st_mtime_ns, status.st_size
    number, place = divmod(offset, MEMBER)
    part, skip = divmod(place, BLOCK)
    return _block(name, same, number, part, -(-size // MEMBER))[skip : skip + count]


def held() -> tuple[int, int]:
    """How many members, and blocks of members, are held inflated for readers."""
    return _member.cache_info().currsize, _block.cache_info().currsize


def forget() -> None:
    """Gives back what was inflated for readers. One that goes on inflates it again."""
    _block.cache_clear()
    _member.cache_clear()


@lru_cache(maxsize=64)
def _hops(path: str, same: tuple[int, int, int], members: int) -> "array[int]":
    """Where each of so many members begins, and where the last ends. `same`: inode, time and size: what makes it the
    same file."""
    fd = open_read(path)
    try:
        found, place = array("Q", [0]), 0
        while len(found) <= members and (header := os.pread(fd, _HEADER.size, place)):
            place += _size(path, header)
            if place > same[2]:
                raise _damaged(path)
            found.append(place)
        return found
    finally:
        os.close(fd)


@lru_cache(maxsize=BLOCKS)
def _block(path: str, same: tuple[int, int, int], number: int, part: int, members: int) -> bytes:
    """The output in a part of a member."""
    return _member(path, same, number, members)[part * BLOCK : (part + 1) * BLOCK]


@lru_cache(maxsize=MEMBERS)
def _member(path: str, same: tuple[int, int, int], number: int, members: int) -> bytes:
    """The output in a member, kept since it is mostly read in several blocks; nothing behind the last."""
    hops = _hops(path, same, members)
    if number + 1 >= len(hops):
        return b""
    fd = open_read(path)
    try:
        data = os.pread(fd, hops[number + 1] - hops[number], hops[number])
    finally:
        os.close(fd)
    try:
        body = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data[_HEADER.size : -_TRAILER.size], MEMBER)
    except zlib.error:
        raise _damaged(path) from None
    if _TRAILER.unpack(data[-_TRAILER.size :]) != (zlib.crc32(body), len(body)):
        raise _damaged(path)
    return body


def _size(path: str, header: bytes) -> int:
    """Of a member in the file."""
    if len(header) < _HEADER.size:
        raise _damaged(path)
    *fixed, size = _HEADER.unpack(header)
    if fixed != [b"\x1f\x8b", 8, 4, 0, 0, 3, 8, b"MU", 4] or not _HEADER.size + _TRAILER.size <= size <= _MOST:
        raise _damaged(path)
    return int(size)


def _damaged(path: str) -> OSError:
    return OSError(errno.EIO, "is damaged: muster did not write it like this", str(path))


def open_read(path: os.PathLike[str] | str, folder: int | None = None, *, inode: int = 0) -> int:
    """`path`: of a file, or its name in the folder with this descriptor. `inode`: no other file, if not 0. Raises
    OSError, also for a link, and for all else that is no file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    if inode and found.st_ino != inode:
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return fd
