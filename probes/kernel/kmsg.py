"""The kernel's log, record by record (/dev/kmsg, Documentation/ABI/testing/dev-kmsg of Linux).

A record is "priority,number,microseconds,flags[,more];text", then lines " KEY=value". Numbers go on by one from the
boot on, so a reader that remembers boot and number reads no record twice.
"""

import errno
import os
import re
import stat
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from muster.probes.kernel import process
from muster.probes.kernel.dataclass import dataclass

PATH = Path("/dev/kmsg")
#: No record is larger: the kernel's own buffer for one (CONSOLE_EXT_LOG_MAX) is 8 KiB.
_RECORD = 8192
#: Most records that `since_boot` reads: all that the usual buffer holds.
_MOST_RECORDS = 50_000
#: The log's clock stands still while the node sleeps, and is a little apart from ours, in seconds.
SLACK_S = 2.0
#: Who wrote a record (its priority by eight): the kernel, or a program of root's. Others are the log of system
#: services.
_KERNEL, _USER = 0, 1
#: Number of the capability to read the kernel's log (capabilities(7)).
_CAP_SYSLOG = 34
#: Of a process that died of a fault of its own. x86: "python[4711]: segfault at 0 ip ...", "traps: python[4711] general
#: protection fault ip:..."; arm64: "python[4711]: unhandled exception: ...". A name may hold any character.
_CRASH = re.compile(
    r"^(?:traps: )?(.{1,64}?)\[([0-9]{1,10})\](?:: segfault at "
    r"|: (?:unhandled (?:exception|signal)|potentially unexpected fatal signal)| (?:general protection fault|trap ))"
)
#: The kernel writes what is not printable, and the backslash, as \xNN.
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One record. `seconds` is the kernel's clock, which began with the boot and stands still while the node sleeps;
    `level` 0 (emergency) to 7 (debug); `kernel` tells whether the kernel wrote it itself. Its further
    lines (SUBSYSTEM=, DEVICE=) are not kept."""

    seq: int
    seconds: float
    level: int
    kernel: bool
    text: str


@dataclass(frozen=True, slots=True)
class Crash:
    """A process that died of a fault of its own, and the kernel's line about that, which says where and in which
    library. `at`: seconds since the epoch."""

    pid: int
    name: str
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Position:
    """The last record that was read, in which boot."""

    boot_id: str
    seq: int


def parse(data: bytes) -> KernelRecord | None:
    """One record as it was read; None for what is none, and for what a system service wrote there."""
    head, semicolon, rest = data.partition(b";")
    fields = head.split(b",")
    # int() would take "+1" and " 1" as well.
    if not semicolon or len(fields) < 3 or not all(f.isdigit() and len(f) < 20 for f in fields[:3]):
        return None
    priority, seq, microseconds = (int(f) for f in fields[:3])
    facility = priority >> 3
    if facility not in (_KERNEL, _USER):
        return None
    text = rest.partition(b"\n")[0]
    return KernelRecord(seq, microseconds / 1e6, priority & 7, facility == _KERNEL, _plain(text))


def since_boot(words: Sequence[bytes] = (b"",), path: Path = PATH) -> list[KernelRecord]:
    """All records that the log has and that contain one of these words. An error that ends the log is its end.

    Raises OSError where the log cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found: list[KernelRecord] = []
    try:
        for _ in range(_MOST_RECORDS):
            data = _next(fd)
            if data is None:
                break
            if any(word in data for word in words) and (record := parse(data)) is not None:
                found.append(record)
    except OSError:
        pass
    finally:
        os.close(fd)
    return found


def crashes_of(pids: Collection[int], since: float, path: Path = PATH) -> list[Crash]:
    """What the log says since `since` (seconds since the epoch) of these processes. Nothing in a container with pids
    of its own: the log names those of the host. Blocks. Raises OSError."""
    if not process.pids_are_the_kernels():
        return []
    found = [its for one in since_boot(path=path) if one.kernel and (its := crash(one)) is not None]
    return [one for one in found if one.pid in pids and one.at >= since - SLACK_S]


def crash(record: KernelRecord) -> Crash | None:
    """None for a record about anything else."""
    match = _CRASH.match(record.text)
    if match is None:
        return None
    return Crash(int(match[2]), match[1], wall_time(record.seconds), record.text)


def _next(fd: int) -> bytes | None:
    """The next record; empty for one that cannot be read; None at the end. Raises OSError."""
    try:
        return os.read(fd, _RECORD) or None
    except BlockingIOError:
        return None
    except InterruptedError:
        return b""
    except OSError as error:
        # EPIPE: overwritten, the kernel continues with the oldest that is left. EINVAL: larger than any record may be.
        if error.errno in (errno.EPIPE, errno.EINVAL):
            return b""
        raise


def _plain(text: bytes) -> str:
    return _ESCAPED.sub(lambda m: bytes([int(m[1], 16)]), text).decode("utf-8", "replace")


class KernelLog:
    """Reads on from where it stands. Not for several threads at once."""

    def __init__(self, path: Path = PATH, after: Position | None = None, boot_id: str | None = None) -> None:
        """`after`: what was read before; of another boot, or None, the log is read from its oldest record on.

        `boot_id` is this boot's (None: as the kernel tells it).
        """
        self.path = path
        self._fd = -1
        self._boot_id = _boot_id() if boot_id is None else boot_id
        self._seq = after.seq if after is not None and after.boot_id == self._boot_id else -1
        #: Records that the kernel overwrote before they were read.
        self.lost = 0

    @property
    def position(self) -> Position | None:
        """To be given to the next one; None as long as nothing was read."""
        return Position(self._boot_id, self._seq) if self._seq >= 0 else None

    def open(self) -> None:
        """Raises OSError; `unreadable` says in words what is missing."""
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self) -> None:
        """Closes the log; it can be opened again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        """Of the open log; readable when there is more."""
        return self._fd

    def read(self, most: int = 500) -> tuple[list[KernelRecord], bool]:
        """The next records, those that are new, at most so many; and whether there may be more. Never waits.

        Raises OSError where the log cannot be read (any more).
        """
        found: list[KernelRecord] = []
        for _ in range(most):
            data = _next(self._fd)
            if data is None:
                return found, False
            seq = sequence(data)
            if seq is None or seq <= self._seq:
                continue
            if self._seq >= 0:
                self.lost += seq - self._seq - 1
            self._seq = seq
            if (record := parse(data)) is not None:
                found.append(record)
        return found, True


def sequence(data: bytes) -> int | None:
    """The number of a record, wanted or not."""
    fields = data.partition(b";")[0].split(b",")
    return int(fields[1]) if len(fields) >= 3 and fields[1].isdigit() and len(fields[1]) < 20 else None


def wall_time(seconds: float) -> float:
    """Epoch seconds of a record, by the clock as it is set now."""
    return time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - seconds)


def _boot_id() -> str:
    """Empty where the kernel does not tell it."""
    try:
        return process.boot_id()
    except OSError:
        return ""


def unreadable(error: OSError, path: Path = PATH, proc: Path = Path("/proc")) -> str:
    """Why the log cannot be read, and what is missing, in a sentence."""
    if error.errno == errno.ENOENT:
        give = f"give the container this device (`--device {path}`) and CAP_SYSLOG"
        return f'{path} does not exist: {give}, or set skip = "kernel-log" in [health]'
    if error.errno in (errno.EPERM, errno.EACCES):
        capable, restricted = _has_capability(proc), _read(proc / "sys/kernel/dmesg_restrict") == "1"
        if not capable and (restricted or error.errno == errno.EPERM):
            why = " (kernel.dmesg_restrict is 1)" if restricted else ""
            return (
                f"{path}: CAP_SYSLOG is missing{why}: grant it to the daemon (AmbientCapabilities=, `--cap-add SYSLOG`)"
            )
        return f"{path}: this user may not open it: {_mode(path)}; root may, and users whom a group or an ACL allows"
    return f"{path}: {error.strerror or error}"


def _has_capability(proc: Path) -> bool:
    return bool(process.effective_capabilities(_read(proc / "self/status")) >> _CAP_SYSLOG & 1)


def _mode(path: Path) -> str:
    try:
        told = path.stat()
    except OSError as error:
        return str(error.strerror)
    return f"mode {stat.filemode(told.st_mode)}, uid {told.st_uid}"


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
