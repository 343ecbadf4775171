"""A file system that passes everything on to a folder, and is slow or refuses as it is told: FUSE by the kernel's own
protocol (include/uapi/linux/fuse.h), without a library.

`python -m tests.chaos.passthrough BACKING TARGET CONTROL`, as root, mounts it on TARGET and serves it until it is
killed. CONTROL is a file of 8 bytes that is looked at before each call: a u32 with the errno that whatever changes
something gets, and a u32 with the milliseconds that each call takes longer.
"""

import ctypes
import errno
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("<QQQQII")
_MAX_WRITE = 1 << 17
_BIG_WRITES = 1 << 5
_MS_NOSUID, _MS_NODEV = 2, 4


def mount(target: Path) -> int:
    """Mounts an empty FUSE file system; returns the descriptor it is served by. Raises OSError."""
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40755,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"muster-chaos", os.fsencode(target), b"fuse", _MS_NOSUID | _MS_NODEV, options):
        number = ctypes.get_errno()
        os.close(fd)
        raise OSError(number, os.strerror(number), str(target))
    return fd


class Passthrough:
    """Serves one mount. One request at a time: a disk is one."""

    def __init__(self, fd: int, backing: Path, control: Path) -> None:
        self._fd = fd
        file = os.open(control, os.O_RDWR | os.O_CREAT)
        os.ftruncate(file, 8)
        self._control = mmap.mmap(file, 8)
        #: Node -> descriptor (O_PATH) of the file. None is forgotten: the mount does not live for long.
        self._nodes = {1: os.open(backing, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)}
        self._calls: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._lookup, 3: self._getattr, 4: self._setattr, 5: self._readlink, 6: self._symlink, 8: self._mknod,
            9: self._mkdir, 10: self._unlink, 11: self._rmdir, 12: self._rename, 13: self._link, 14: self._open,
            15: self._read, 16: self._write, 17: self._statfs, 18: self._release, 20: self._fsync, 25: self._nothing,
            26: self._init, 27: self._open, 28: self._readdir, 29: self._release, 30: self._fsync, 35: self._create,
            45: self._rename2,
        }  # fmt: skip
        #: Those that change something.
        self._changes = {4, 6, 8, 9, 10, 11, 12, 13, 16, 35, 45}

    def serve(self) -> None:
        """Until the mount is gone. Raises OSError."""
        while True:
            try:
                data = os.read(self._fd, _MAX_WRITE + 8192)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):  # the caller was killed meanwhile
                    continue
                if error.errno == errno.ENODEV:
                    return
                raise
            _, code, unique, node, *_ = _IN.unpack_from(data)
            if code in (2, 42, 36):  # forget, forget many, interrupt: no answer is due
                continue
            number, answer = self._call(code, node, data[_IN.size :])
            try:
                os.write(self._fd, _OUT.pack(_OUT.size + len(answer), -number, unique) + answer)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise

    def _call(self, code: int, node: int, data: bytes) -> tuple[int, bytes]:
        refused, delay_ms = struct.unpack("<II", self._control[:8])
        if delay_ms and code != 26:
            time.sleep(delay_ms / 1000)
        try:
            if refused and (code in self._changes or (code == 14 and self._opens_for_writing(data))):
                return refused, b""
            call = self._calls.get(code)
            return (errno.ENOSYS, b"") if call is None else (0, call(node, data))
        except OSError as error:
            return error.errno or errno.EIO, b""

    @staticmethod
    def _opens_for_writing(data: bytes) -> bool:
        return bool(int(struct.unpack_from("<I", data)[0]) & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC))

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _path(self, node: int) -> str:
        return f"/proc/self/fd/{self._nodes[node]}"

    @staticmethod
    def _attr(stat: os.stat_result, node: int) -> bytes:
        def clock(ns: int) -> tuple[int, int]:
            return ns // 10**9, ns % 10**9

        (a, ans), (m, mns), (c, cns) = clock(stat.st_atime_ns), clock(stat.st_mtime_ns), clock(stat.st_ctime_ns)
        return _ATTR.pack(
            node, stat.st_size, stat.st_blocks, a, m, c, ans, mns, cns,
            stat.st_mode, stat.st_nlink, stat.st_uid, stat.st_gid, stat.st_rdev, 4096, 0,
        )  # fmt: skip

    def _entry(self, parent: int, name: bytes) -> bytes:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._nodes[parent])
        stat = os.fstat(fd)
        node = stat.st_ino
        if node in self._nodes:
            os.close(fd)  # as long as we hold it, no other file has its number
        else:
            self._nodes[node] = fd
        return _ENTRY.pack(node, 0, 0, 0, 0, 0) + self._attr(stat, node)

    # --- calls --------------------------------------------------------------------------------------------------------

    def _init(self, _: int, data: bytes) -> bytes:
        _, minor, readahead, flags = struct.unpack_from("<IIII", data)
        flags &= _BIG_WRITES
        return struct.pack("<IIIIHHIIHHI28x", 7, min(minor, 31), readahead, flags, 16, 12, _MAX_WRITE, 1, 0, 0, 0)

    def _nothing(self, _: int, __: bytes) -> bytes:
        return b""

    def _lookup(self, node: int, data: bytes) -> bytes:
        return self._entry(node, data.rstrip(b"\0"))

    def _getattr(self, node: int, data: bytes) -> bytes:
        flags, _, fh = struct.unpack_from("<IIQ", data)
        stat = os.fstat(fh) if flags & 1 else os.fstat(self._nodes[node])
        return struct.pack("<QII", 0, 0, 0) + self._attr(stat, node)

    def _setattr(self, node: int, data: bytes) -> bytes:
        valid, _, fh, size, _, atime, mtime, _, ans, mns, _, mode, _, uid, gid, _ = struct.unpack_from(
            "<IIQQQQQQIIIIIIII", data
        )
        path = self._path(node)
        if valid & 1:
            os.chmod(path, mode & 0o7777)
        if valid & 6:
            os.chown(path, uid if valid & 2 else -1, gid if valid & 4 else -1)
        if valid & 8:
            os.truncate(fh if valid & 64 else path, size)
        if valid & 48:
            now = time.time_ns()
            at = now if valid & 128 else atime * 10**9 + ans
            os.utime(path, ns=(at, now if valid & 256 else mtime * 10**9 + mns))
        return struct.pack("<QII", 0, 0, 0) + self._attr(os.fstat(self._nodes[node]), node)

    def _readlink(self, node: int, _: bytes) -> bytes:
        return os.readlink(b"", dir_fd=self._nodes[node])

    def _symlink(self, node: int, data: bytes) -> bytes:
        name, target, _ = data.split(b"\0", 2)
        os.symlink(target, name, dir_fd=self._nodes[node])
        return self._entry(node, name)

    def _mknod(self, node: int, data: bytes) -> bytes:
        mode, rdev, _, _ = struct.unpack_from("<IIII", data)
        name = data[16:].rstrip(b"\0")
        os.mknod(name, mode, rdev, dir_fd=self._nodes[node])
        return self._entry(node, name)

    def _mkdir(self, node: int, data: bytes) -> bytes:
        mode, umask = struct.unpack_from("<II", data)
        name = data[8:].rstrip(b"\0")
        os.mkdir(name, mode & ~umask, dir_fd=self._nodes[node])
        return self._entry(node, name)

    def _unlink(self, node: int, data: bytes) -> bytes:
        os.unlink(data.rstrip(b"\0"), dir_fd=self._nodes[node])
        return b""

    def _rmdir(self, node: int, data: bytes) -> bytes:
        os.rmdir(data.rstrip(b"\0"), dir_fd=self._nodes[node])
        return b""

    def _rename(self, node: int, data: bytes, at: int = 8) -> bytes:
        old, new, _ = data[at:].split(b"\0", 2)
        to = struct.unpack_from("<Q", data)[0]
        os.rename(old, new, src_dir_fd=self._nodes[node], dst_dir_fd=self._nodes[to])
        return b""

    def _rename2(self, node: int, data: bytes) -> bytes:
        if struct.unpack_from("<I", data, 8)[0]:
            raise OSError(errno.EINVAL, "flags")
        return self._rename(node, data, at=16)

    def _link(self, node: int, data: bytes) -> bytes:
        name = data[8:].rstrip(b"\0")
        os.link(self._path(struct.unpack_from("<Q", data)[0]), name, dst_dir_fd=self._nodes[node], follow_symlinks=True)
        return self._entry(node, name)

    def _open(self, node: int, data: bytes) -> bytes:
        flags = struct.unpack_from("<I", data)[0] & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        return struct.pack("<QII", os.open(self._path(node), flags | os.O_CLOEXEC), 0, 0)

    def _create(self, node: int, data: bytes) -> bytes:
        flags, mode, umask, _ = struct.unpack_from("<IIII", data)
        name = data[16:].rstrip(b"\0")
        fd = os.open(name, flags | os.O_CREAT | os.O_CLOEXEC, mode & ~umask, dir_fd=self._nodes[node])
        return self._entry(node, name) + struct.pack("<QII", fd, 0, 0)

    def _read(self, _: int, data: bytes) -> bytes:
        fh, offset, size = struct.unpack_from("<QQI", data)
        return os.pread(fh, size, offset)

    def _write(self, _: int, data: bytes) -> bytes:
        fh, offset, size = struct.unpack_from("<QQI", data)
        return struct.pack("<II", os.pwrite(fh, data[40 : 40 + size], offset), 0)

    def _statfs(self, node: int, _: bytes) -> bytes:
        s = os.statvfs(self._path(node))
        sizes = (s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree)
        return struct.pack("<QQQQQIIII24x", *sizes, s.f_bsize, s.f_namemax, s.f_frsize, 0)

    def _release(self, _: int, data: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", data)[0])
        return b""

    def _fsync(self, _: int, data: bytes) -> bytes:
        os.fsync(struct.unpack_from("<Q", data)[0])
        return b""

    def _readdir(self, _: int, data: bytes) -> bytes:
        fh, offset, size = struct.unpack_from("<QQI", data)
        answer = b""
        with os.scandir(fh) as found:
            entries = sorted((entry.name, entry.inode()) for entry in found)
        for number, (name, inode) in list(enumerate(entries, 1))[offset:]:
            raw = os.fsencode(name)
            entry = struct.pack("<QQII", inode, number, len(raw), 0) + raw
            entry += bytes(-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer


def main() -> None:
    backing, target, control = map(Path, sys.argv[1:4])
    server = Passthrough(mount(target), backing, control)
    print("mounted", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
