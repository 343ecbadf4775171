"""Files of a job, which belong to its user, who can put a link, a FIFO or a device at any place of the way.

They are found from the process' own root, /proc/PID/root. Each name is opened by a descriptor of the folder before it,
links are followed by hand and never lead out of that root, and nothing is opened for reading or writing here: the
caller looks first whether it is a regular file (or FIFO) of the expected owner. All of that blocks.
"""

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from muster.probes.kernel.process import parse_stat

PROC = Path("/proc")
#: Links on one way, as the kernel counts them, and folders.
_MAX_LINKS, _MAX_FOLDERS = 40, 64


@contextlib.contextmanager
def root_of(pid: int, start: int, proc: Path = PROC) -> Iterator[int]:
    """A descriptor of the root of the process that began at `start` (clock ticks since boot). Raises OSError,
    ProcessLookupError if that process has ended."""
    root = os.open(f"{proc}/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # After the root was opened: a process with another start would be another one's.
        found = parse_stat(pid, Path(f"{proc}/{pid}/stat").read_bytes())
        if found is None or found.start != start:
            raise ProcessLookupError(errno.ESRCH, "the process has ended", str(pid))
        yield root
    finally:
        os.close(root)


@contextlib.contextmanager
def found_file(root: int, path: str) -> Iterator[int]:
    """A descriptor of a file (O_PATH: it is not opened), which may be a link, but no link on the way leads out of
    `root`. Raises OSError."""
    fd = open_within(root, path)
    try:
        yield fd
    finally:
        os.close(fd)


def open_within(root: int, path: str) -> int:
    """A descriptor (O_PATH) of `path` in the folder `root`, as a process with that root sees it. The caller closes it.
    Links on the way are followed, `path` itself is not. Raises OSError."""
    names = deque(name for name in path.split("/") if name not in ("", "."))
    folders = [os.dup(root)]
    links = 0
    try:
        while names:
            name = names.popleft()
            if name in ("", "."):
                continue
            if name == "..":
                if len(folders) > 1:
                    os.close(folders.pop())
                continue
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folders[-1])
            if not names:
                return fd
            if not stat.S_ISLNK(os.fstat(fd).st_mode):
                folders.append(fd)  # what is no folder fails at the next name
                if len(folders) > _MAX_FOLDERS:
                    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
                continue
            try:
                target = os.readlink("", dir_fd=fd)
            finally:
                os.close(fd)
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            while target.startswith("/") and len(folders) > 1:
                os.close(folders.pop())
            names.extendleft(reversed(target.split("/")))
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    finally:
        for folder in folders:
            os.close(folder)
