"""Where a rank's flight recorder dumps, how it is asked for a dump, and how a fresh one is waited for.

The job's files are opened as `job_files` does it, and must be regular files (or FIFOs) of the expected owner. All of
that blocks, and runs in threads that may be left behind.
"""

import contextlib
import errno
import math
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import anyio

from muster.probes.calls import watched
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.process import TICKS_PER_S, uptime
from muster.probes.library.collective_finding import shown
from muster.probes.library.flight_recorder import MAX_BYTES, DumpBeingWritten, DumpUnreadable, FlightDump, parse_dump
from muster.probes.library.job_files import PROC, found_file, root_of

#: Seconds between two looks at a file that is waited for.
LOOK_S = 0.25
#: Seconds by which clocks of file systems may be behind.
CLOCK_S = 60.0

T = TypeVar("T")

#: Prefixes of the file, the newest name first: PyTorch prefers them in this order (getCvarString in c10d/Utils.hpp).
#: The last are torch_npu's and Intel's XCCL.
FILE_VARIABLES = (
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_HCCL_DEBUG_INFO_TEMP_FILE",
)
PIPE_VARIABLES = (
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_HCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_FR_DEBUG_INFO_PIPE_FILE",
)


@dataclass(frozen=True, slots=True)
class DumpSource:
    """A rank's process, and where its dump may be. `start`: of the process, in clock ticks since boot; `uid`: the owner
    that its files must have. `files`: paths in the job's root, the likeliest first; `pipe`: empty where none was set
    when the rank started: then only a timeout of the job itself makes a dump."""

    rank: int
    pid: int
    start: int
    uid: int
    files: tuple[str, ...]
    pipe: str = ""


@dataclass(frozen=True, slots=True)
class DumpStamp:
    """A file at one moment: what differs once it was written again."""

    inode: int
    size: int
    changed_ns: int


def dump_source(rank: int, pid: int, start: int, uid: int, environ: Iterable[bytes]) -> DumpSource:
    """`environ`: NAME=VALUE each, as /proc/PID/environ has them; `rank`: the global one.

    The defaults of the file are `~/.cache/torch/comm_lib_trace_rank_` of the newer versions (with XDG_CACHE_HOME) and
    `/tmp/nccl_trace_rank_` of the older ones. A relative path leads from the process' working folder, which may have
    changed since: it is left out.
    """
    pairs = (entry.decode("utf-8", "surrogateescape").partition("=") for entry in environ)
    variables = {name: value for name, _, value in pairs}
    prefixes = [variables[name] for name in FILE_VARIABLES if variables.get(name)]
    if not prefixes:
        cache = variables.get("XDG_CACHE_HOME") or (variables["HOME"] + "/.cache" if variables.get("HOME") else "")
        prefixes = [*([f"{cache}/torch/comm_lib_trace_rank_"] if cache else []), "/tmp/nccl_trace_rank_"]
    pipes = [variables[name] for name in PIPE_VARIABLES if variables.get(name, "").startswith("/")]
    files = tuple(f"{prefix}{rank}" for prefix in prefixes if prefix.startswith("/"))
    return DumpSource(rank, pid, start, uid, files, f"{pipes[0]}{rank}.pipe" if pipes else "")


async def ask_for_dump(source: DumpSource, deadline_s: float = 5.0, proc: Path = PROC) -> str:
    """Asks a rank for a dump by its pipe. "" if it was asked; else why not, in one sentence. The dump comes later, or
    never: the rank looks at its pipe once a second, or once in 8 minutes without TORCH_NCCL_DUMP_ON_TIMEOUT=1."""
    if not source.pipe:
        return f"rank {source.rank} has no pipe: TORCH_NCCL_DEBUG_INFO_PIPE_FILE was not set when it started"
    try:
        with anyio.fail_after(deadline_s):
            await watched.call(f"the pipe of process {source.pid}", lambda: _write_pipe(source, proc))
    except DumpUnreadable as error:
        return str(error)
    except (OSError, watched.StillHanging) as error:  # TimeoutError is an OSError
        return f"the pipe {shown(source.pipe)} of rank {source.rank}: {_reason(error)}"
    return ""


async def dump_stamps(source: DumpSource, deadline_s: float = 5.0, proc: Path = PROC) -> Mapping[str, DumpStamp]:
    """The present files, by path: call it before a dump is asked for. Raises DumpUnreadable where they cannot be looked
    at in time."""
    return await _in_thread(source, deadline_s, lambda: _stamps(source, proc))


async def latest_dump(source: DumpSource, deadline_s: float = 10.0, proc: Path = PROC) -> FlightDump:
    """The dump that was written last, however old it is. Raises DumpUnreadable, DumpBeingWritten."""
    return await _in_thread(source, deadline_s, lambda: _read(source, {}, proc))


async def fresh_dump(
    source: DumpSource,
    before: Mapping[str, DumpStamp],
    deadline_s: float,
    proc: Path = PROC,
    limiter: anyio.CapacityLimiter | None = None,
) -> FlightDump:
    """A dump that was written since `before`, once it is complete. `limiter`: held while a file is read. Raises
    DumpUnreadable: it did not come within `deadline_s` seconds, or is none."""
    limiter = limiter or anyio.CapacityLimiter(1)
    why = "no new dump"
    with anyio.move_on_after(deadline_s):
        while True:
            try:
                async with limiter:
                    return await _in_thread(source, math.inf, lambda: _read(source, before, proc))
            except (DumpBeingWritten, _NoFreshDump) as error:
                why = str(error)
            await anyio.sleep(LOOK_S)
    raise DumpUnreadable(f"rank {source.rank} wrote no dump within {deadline_s:g} s: {why}")


class _NoFreshDump(DumpUnreadable):
    """There is no file, or none that was written since."""


async def _in_thread(source: DumpSource, deadline_s: float, function: Callable[[], T]) -> T:
    try:
        with anyio.fail_after(deadline_s):
            return await watched.call(f"the flight recorder's dump of process {source.pid}", function)
    except (OSError, watched.StillHanging) as error:  # TimeoutError is an OSError
        raise DumpUnreadable(f"the dump of rank {source.rank}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "not read in time: the file system hangs, or the dump is too large for this machine"
    return str(getattr(error, "strerror", None) or error)


# --- in a thread ------------------------------------------------------------------------------------------------------


def _stamps(source: DumpSource, proc: Path) -> dict[str, DumpStamp]:
    found = {}
    with root_of(source.pid, source.start, proc) as root:
        for path in source.files:
            with contextlib.suppress(OSError), found_file(root, path) as fd:
                found[path] = _stamp(os.fstat(fd))
    return found


def _stamp(seen: os.stat_result) -> DumpStamp:
    return DumpStamp(seen.st_ino, seen.st_size, seen.st_mtime_ns)


def _read(source: DumpSource, before: Mapping[str, DumpStamp], proc: Path) -> FlightDump:
    """The newest of the files that differ from `before`."""
    started_s = time.time() - uptime() + source.start / TICKS_PER_S
    missing: OSError | None = None
    with contextlib.ExitStack() as held:
        root = held.enter_context(root_of(source.pid, source.start, proc))
        files: list[tuple[os.stat_result, str, int]] = []
        for path in source.files:
            try:
                fd = held.enter_context(found_file(root, path))
            except OSError as error:
                missing = missing or error
                continue
            seen = os.fstat(fd)
            if before.get(path) != _stamp(seen):
                files.append((seen, path, fd))
        if not files:
            paths = " or ".join(shown(path) for path in source.files) or "(no path)"
            why = missing.strerror if missing is not None and not before else "not written again"
            raise _NoFreshDump(f"{paths}: {why}")
        seen, path, fd = max(files, key=lambda one: one[0].st_mtime_ns)
        if not stat.S_ISREG(seen.st_mode):
            raise DumpUnreadable(f"{shown(path)} is not a regular file")
        if seen.st_uid != source.uid:
            raise DumpUnreadable(f"{shown(path)} belongs to uid {seen.st_uid} instead of {source.uid}, the rank's user")
        if seen.st_size > MAX_BYTES:
            raise DumpUnreadable(f"{shown(path)} is larger than {MAX_BYTES >> 20} MiB")
        if seen.st_mtime < started_s - CLOCK_S:
            raise _NoFreshDump(f"{shown(path)} is older than the rank's process")
        data = _content(fd)
        if _stamp(os.fstat(fd)) != _stamp(seen):
            raise DumpBeingWritten(f"{shown(path)} is being written")
    return parse_dump(data)


def _content(fd: int) -> bytes:
    """Of a file that was found to be a regular one; one byte more than is allowed, at most."""
    with open(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read(MAX_BYTES + 1)


def _write_pipe(source: DumpSource, proc: Path) -> None:
    with root_of(source.pid, source.start, proc) as root, found_file(root, source.pipe) as found:
        seen = os.fstat(found)
        if not stat.S_ISFIFO(seen.st_mode):
            raise DumpUnreadable(f"{shown(source.pipe)} is not a FIFO")
        if seen.st_uid != source.uid:
            owner = f"uid {seen.st_uid} instead of {source.uid}, the rank's user"
            raise DumpUnreadable(f"{shown(source.pipe)} belongs to {owner}")
        try:
            fd = os.open(f"/proc/self/fd/{found}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            why = "nothing reads the pipe: the rank has no NCCL process group yet, or its flight recorder is off"
            raise DumpUnreadable(f"{shown(source.pipe)}: {why}") from None
        try:
            os.write(fd, b"1")
        except BlockingIOError:
            raise DumpUnreadable(f"{shown(source.pipe)} is full: the rank does not read it") from None
        finally:
            os.close(fd)
