"""Whose the log files are of jobs whose records were collected.

The logs of such a job stay for as long as [logs] keeps them, under the same rules as those of any ended job. So what
these rules need of it is kept: a line of JSON per job, in one file, which is read when the log folder is looked at and
loses the lines of jobs that have no files any more. Everything here blocks.
"""

import contextlib
import os
import threading
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from muster.agent.host.state_file import write_text
from muster.agent.jobs.ended.ended_row import Ended
from muster.supervisors.model.states import State


class _Line(msgspec.Struct, omit_defaults=True):
    """A job; `ranks`: numbers of those of this node, null where they are not known."""

    job: str
    accepted_at: float
    ended_at: float
    node_rank: int
    ranks: list[int] | None
    folders: list[str]
    state: str


class CollectedLogs:
    """For any thread."""

    def __init__(self, path: Path) -> None:
        """`path`: of the file, which need not exist."""
        self._path = path
        self._lock = threading.Lock()

    def add(self, rows: Iterable[Ended]) -> None:
        """Puts jobs onto the disk whose records are about to be removed. Raises OSError."""
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
        """By job id, the last of each; a line that is damaged is left out. Raises OSError."""
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
                    here = msgspec.json.decode(line, type=_Line)
                    ranks = tuple(here.ranks) if here.ranks is not None else None
                    folders, state = tuple(here.folders), State(here.state)
                    found[here.job] = Ended(
                        here.job, here.accepted_at, here.ended_at, state, here.node_rank, ranks, folders, uploaded=True
                    )
        return found


def _encoded(row: Ended) -> bytes:
    ranks = list(row.ranks) if row.ranks is not None else None
    line = _Line(row.job_id, row.accepted_at, row.since, row.node_rank, ranks, list(row.folders), str(row.state))
    return msgspec.json.encode(line) + b"\n"
