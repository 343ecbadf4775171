"""Which version of NCCL a process has mapped: earlier ones than `SAFE_FROM` crash jobs when their RAS is asked.

Known crashes: a status during the initialization of a communicator (2.24 to 2.26, NCCL issues 1669 and 1718), a text
status while ranks are missing (2.26.2 to 2.28.9, issue 1762). Fixed in 2.29.2. A text status of newer ones may still
crash (issue 2346), which is why muster asks for JSON only.
"""

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

import anyio

from muster.probes.calls import watched
from muster.probes.library.job_files import open_within

#: The first version that is asked by default.
SAFE_FROM = (2, 29, 2)
#: Bytes of the library that are searched for its version, and of /proc/PID/maps that are read.
MAX_LIBRARY_BYTES, MAX_MAPS_BYTES = 512 << 20, 8 << 20
PROC = Path("/proc")

_LIBRARY = re.compile(r"(/\S.*/libnccl\.so(?:\.2(?:\.(\d+)\.(\d+))?)?)$")
#: "/opt/nccl_2.29.2-1+cuda12/lib/", "/nix/store/...-nccl-2.29.2/lib/".
_IN_FOLDER = re.compile(r"[/-]nccl[-_]2\.(\d+)\.(\d+)[^/]*/")
#: In the library's data, for the line that it logs at its start (src/init.cc, VERSION_STRING).
_STRING = re.compile(rb"NCCL version 2\.(\d{1,3})\.(\d{1,3})(?![\d])")
_CHUNK = 4 << 20

Version = tuple[int, int, int]


def library_of(maps_lines: Iterable[str]) -> str:
    """The path of the mapped libnccl, from lines of /proc/PID/maps; "" where none is mapped: NCCL is not in use, or is
    linked statically."""
    for line in maps_lines:
        if "libnccl.so" in line and (found := _LIBRARY.search(line.rstrip("\n"))):
            return found[1]
    return ""


def version_of(maps_lines: Iterable[str]) -> Version | None:
    """The version, where the path of the mapped library tells it, from lines of /proc/PID/maps."""
    path = library_of(maps_lines)
    found = _LIBRARY.search(path)
    if found is not None and found[2]:
        return 2, int(found[2]), int(found[3])
    inner = _IN_FOLDER.search(path)
    return (2, int(inner[1]), int(inner[2])) if inner is not None else None


async def mapped_version(pid: int, deadline_s: float = 10.0, proc: Path = PROC) -> Version | None:
    """Of a process: by the path of the library, else by the text in it. None where that cannot be found out in time:
    then RAS should not be asked."""
    try:
        with anyio.fail_after(deadline_s):
            return await watched.call(f"the NCCL version of process {pid}", lambda: _mapped_version(pid, proc))
    except (OSError, watched.StillHanging):
        return None


def _mapped_version(pid: int, proc: Path) -> Version | None:
    """Blocks. Raises OSError."""
    with open(f"{proc}/{pid}/maps", "rb") as file:
        lines = file.read(MAX_MAPS_BYTES).decode("utf-8", "replace").splitlines()
    path = library_of(lines)
    if not path or (found := version_of(lines)) is not None:
        return found if path else None
    root = os.open(f"{proc}/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # The library may be a link itself (libnccl.so.2 -> libnccl.so.2.29.2); the kernel shows what it leads to.
        fd = open_within(root, path)
    finally:
        os.close(root)
    try:
        return _version_in(fd) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    finally:
        os.close(fd)


def _version_in(found: int) -> Version | None:
    """Of a library, by a descriptor that only names it."""
    with open(os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        rest, read = b"", 0
        while read < MAX_LIBRARY_BYTES and (chunk := file.read(_CHUNK)):
            read += len(chunk)
            # A number at the very end of what was read may go on in the next piece.
            piece = rest + chunk
            if (match := _STRING.search(piece)) and (match.end() < len(piece) or len(chunk) < _CHUNK):
                return 2, int(match[1]), int(match[2])
            rest = piece[-64:]
    return None
