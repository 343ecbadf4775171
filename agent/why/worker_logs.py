"""Logs that a job's processes write beside their output: those of a launcher's workers, and CANN's plog.

The job decides where they are, in folders of the job's user, so nothing there is trusted. muster reads only a plain
file with one name (one hard link) that belongs to the job's user, and only its end.
"""

import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator

from muster.agent.why.launchers import WorkerFailure
from muster.probes.kernel.dataclass import dataclass

#: Limits: entries of a folder, files that are read for a rank, bytes of the end of each file.
MAX_ENTRIES, MAX_FILES, MAX_BYTES = 1024, 32, 64 << 10
#: A file may be older than the attempt by so many seconds, because the clock of a file system may differ.
_OLDER_S = 2.0
_MSRUN = re.compile(r"worker_([0-9]{1,7})\.log")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank of the job ran: as which user, in which folder, since when (seconds since the epoch). `log_dirs`:
    folders for workers' logs that its command names. `plogs`: folders of CANN's logs; `shared_plogs`: folders of
    CANN's logs that also contain logs of other jobs."""

    uid: int
    folder: str
    began: float
    log_dirs: tuple[str, ...] = ()
    plogs: tuple[str, ...] = ()
    shared_plogs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessLog:
    """The end of a log. `rank`: the worker's, if the name of the file gives it. `at`: when it was last written, in
    seconds since the epoch."""

    path: str
    data: bytes
    at: float
    rank: int | None = None


def of_workers(first: WorkerFailure, log_dir: str, place: Place) -> list[ProcessLog]:
    """Logs of a launcher's workers. `log_dir`: the folder that the launcher itself names. Blocks; never raises."""
    if first.launcher == "msrun":
        return list(itertools.islice(_of_msrun(log_dir, place), MAX_FILES))
    if first.launcher == "torchrun" and first.local_rank is not None:
        return list(itertools.islice(_of_torchrun(first, place), MAX_FILES))
    return []


def of_cann(place: Place, pid: int | None) -> list[ProcessLog]:
    """CANN's logs of a rank. `pid`: its process, which finds its logs in a shared folder. Blocks."""
    own = [path for folder in place.plogs for path in _plogs(folder, "plog-")]
    if pid:
        own += [path for folder in place.shared_plogs for path in _plogs(folder, f"plog-{pid}_")]
    found = [log for path in own[:MAX_ENTRIES] if (log := _read(path, place)) is not None]
    return sorted(found, key=lambda log: log.at)[-MAX_FILES // 8 :]


def of_pid(logs: Iterable[ProcessLog], pid: int | None) -> ProcessLog | None:
    """The log whose lines name this process, as MindSpore's and CANN's do: "[ERROR] ME(22372:1397..."."""
    if not pid:
        return None
    pattern = re.compile(rb"^\[[A-Z]{4,8}\] [A-Z_]{1,20}\(%d[,:]" % pid, re.MULTILINE)
    return next((log for log in logs if pattern.search(log.data)), None)


def _of_msrun(log_dir: str, place: Place) -> Iterator[ProcessLog]:
    for folder in [log_dir] if log_dir else place.log_dirs:
        for name in sorted(_names(os.path.join(place.folder, folder))):
            match = _MSRUN.fullmatch(name)
            if match and (log := _read(os.path.join(place.folder, folder, name), place, rank=int(match[1]))):
                yield log


def _of_torchrun(first: WorkerFailure, place: Place) -> Iterator[ProcessLog]:
    """FOLDER/RUN_xyz/attempt_N/LOCAL_RANK/stderr.log: those of the newest attempt of the newest run."""
    folders = [os.path.dirname(first.error_file)] if first.error_file.startswith("/") else []
    for log_dir in place.log_dirs:
        top = os.path.join(place.folder, log_dir)
        for run in _names(top):
            for attempt in _names(os.path.join(top, run)):
                if attempt.startswith("attempt_"):
                    folders.append(os.path.join(top, run, attempt, str(first.local_rank)))
    dated = sorted((when, folder) for folder in folders if (when := _changed(folder)) >= place.began - _OLDER_S)
    for name in ("stdout.log", "stderr.log"):
        if dated and (log := _read(os.path.join(dated[-1][1], name), place, rank=first.rank)) and log.data:
            yield log


def _plogs(folder: str, begin: str) -> list[str]:
    found = []
    for kind in ("debug", "run"):
        here = os.path.join(folder, kind, "plog")
        found += [os.path.join(here, name) for name in _names(here) if name.startswith(begin)]
    return found


def _names(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in itertools.islice(entries, MAX_ENTRIES)]
    except OSError:
        return []


def _changed(folder: str) -> float:
    try:
        return os.stat(folder, follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _read(path: str, place: Place, rank: int | None = None) -> ProcessLog | None:
    """The end of a file. None if it is older than the attempt or is not a plain file of the job's user: it may be a
    link, a FIFO, or another name of somebody else's file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        plain = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid == place.uid
        if not plain or found.st_mtime < place.began - _OLDER_S:
            return None
        data = os.pread(fd, MAX_BYTES, max(0, found.st_size - MAX_BYTES))
        if found.st_size > MAX_BYTES:
            data = data[data.find(b"\n") + 1 :]
        return ProcessLog(path, data, found.st_mtime, rank)
    except OSError:
        return None
    finally:
        os.close(fd)
