"""Who owns the log files of jobs whose records were collected.

The logs of such a job stay as long as [logs] keeps them, under the same rules as those of any ended job. This file
keeps what these rules need: a line of JSON per job. It is read when the log folder is examined, and loses the lines of
jobs that have no files any more. Everything here blocks.
"""

import contextlib
import os
import threading
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from muster.agent.host.state_file import write_text
from muster.agent.jobs.ended.ended_row import Ended
from muster.probes import typed
from muster.supervisors.model.states import State


class _CollectedJob(msgspec.Struct, omit_defaults=True):
    """A job; `ranks`: numbers of its ranks on this node, null if unknown."""

    job: str
    accepted_at: float
    ended_at: float
    node_rank: int
    ranks: list[int] | None
    folders: list[str]
    state: str


class CollectedLogs:
    """Safe to use from any thread."""

    def __init__(self, path: Path) -> None:
        """`path`: the file, which need not exist."""
        self._path = path
        self._lock = threading.Lock()

    def add(self, rows: Iterable[Ended]) -> None:
        """Writes jobs whose records are about to be removed to disk. Raises OSError."""
        lines = b"".join(_encoded(row) for row in rows)
        with self._lock:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                size = os.fstat(fd).st_size
                torn = size and os.pread(fd, 1, size - 1) != b"\n"
                data = (b"\n" if torn else b"") + lines
                if os.write(fd, data) != len(data):
                    os.ftruncate(fd, size)
                    raise OSError(28, os.strerror(28), str(self._path))
                os.fsync(fd)
            finally:
                os.close(fd)

    def read(self) -> dict[str, Ended]:
        """The last line of each job, by job id; damaged lines are left out. Raises OSError."""
        with self._lock:
            return self._read()

    def drop(self, rows: Collection[Ended]) -> None:
        """Forgets these jobs, as they were read. Raises OSError."""
        if not rows:
            return
        gone = {row.key for row in rows}
        with self._lock:
            known = self._read()
            left = [row for row in known.values() if row.key not in gone]
            if not left:
                self._path.unlink(missing_ok=True)
            elif len(left) < len(known):
                write_text(self._path, b"".join(_encoded(row) for row in left).decode())

    def _read(self) -> dict[str, Ended]:
        found = {}
        with contextlib.suppress(FileNotFoundError):
            for line in self._path.read_bytes().splitlines():
                with contextlib.suppress(ValueError):
                    here = typed.decode(line, _CollectedJob)
                    ranks = tuple(here.ranks) if here.ranks is not None else None
                    folders, state = tuple(here.folders), State(here.state)
                    found[here.job] = Ended(
                        here.job, here.accepted_at, here.ended_at, state, here.node_rank, ranks, folders, uploaded=True
                    )
        return found


def _encoded(row: Ended) -> bytes:
    ranks = list(row.ranks) if row.ranks is not None else None
    job = _CollectedJob(row.job_id, row.accepted_at, row.since, row.node_rank, ranks, list(row.folders), str(row.state))
    return msgspec.json.encode(job) + b"\n"
