"""Jobs whose folder is missing: somebody moved or removed it, or replaced it. Their living processes are found by the
mark that each process of a job has in its environment. Everything here blocks."""

import contextlib
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path

from muster.probes.kernel import marks, open_files, process
from muster.supervisors.launch import environment
from muster.supervisors.model.spec_fields import JOB_ID
from muster.supervisors.model.states import service_number
from muster.supervisors.paths import Root

_ID, _NONCE = marks.mark(marks.JOB_ID), marks.mark(marks.NONCE)
#: A FIFO of a job, as /proc/PID/fd names it, wherever the folder is now.
_FIFO = re.compile(r"(?P<folder>.*)/(?:rank-(?P<rank>\d+)|service-(?P<service>\d+)|job)\.fifo(?: \(deleted\))?")


def unrecorded(root: Root, known: Collection[str]) -> list[str]:
    """Ids of jobs with living processes that are not among the `known` ones. Raises OSError if it has no descriptor to
    look with."""
    found = set[str]()
    for pid, seen in process.all_stats().items():
        if seen.ended:
            continue
        variables = process.environ(pid)
        for name in _values(variables, _ID):
            if name in known or name in found or JOB_ID.fullmatch(name) is None:
                continue
            if any(value.startswith(environment.nonce_prefix(root, name)) for value in _values(variables, _NONCE)):
                found.add(name)
    return sorted(found)


def nonce(root: Root, job_id: str, pids: Collection[int]) -> str:
    """The complete nonce of the job that these processes belong to, or the common start of the nonces of all jobs with
    this id. Raises OSError if it has no descriptor to look with."""
    prefix = environment.nonce_prefix(root, job_id)
    for pid in pids:
        for value in _values(process.environ(pid), _NONCE):
            if value.startswith(prefix):
                return value
    return prefix


def fifos(pids: Collection[int]) -> dict[int, Path]:
    """FIFOs that these processes of a job write to, by rank or service: a path that opens each, even if it has no
    name."""
    found: dict[int, Path] = {}
    for pid in pids:
        for number in (1, 2):
            path = Path(f"/proc/{pid}/fd/{number}")
            with contextlib.suppress(OSError):
                match = _FIFO.fullmatch(open_files.target(pid, number))
                if match is not None and stat.S_ISFIFO(path.stat().st_mode):
                    if match["rank"]:
                        found.setdefault(int(match["rank"]), path)
                    elif match["service"]:
                        found.setdefault(service_number(int(match["service"])), path)
    return found


def supervisor(pids: Collection[int]) -> int:
    """The parent of these processes of a job, if it is the job's supervisor: it has the FIFOs open and, in their
    folder, the lock. 0: not found. A nursery has no such lock."""
    stats = process.all_stats()
    parents = {stats[pid].ppid for pid in pids if pid in stats} - {0, 1, os.getpid(), *pids}
    for parent in sorted(parents):
        targets = set(open_files.targets(parent))
        folders = {match["folder"] for target in targets if (match := _FIFO.fullmatch(target)) is not None}
        if any(f"{folder}/lock" in targets or f"{folder}/lock (deleted)" in targets for folder in folders):
            return parent
    return 0


def drains(pid: int) -> bool:
    """Whether this process lives and has FIFOs of a job open, wherever the job's folder is now."""
    seen = process.read_stat(pid) if pid else None
    return seen is not None and not seen.ended and any(map(_FIFO.fullmatch, open_files.targets(pid)))


def _values(variables: list[bytes], name: bytes) -> list[str]:
    return [variable[len(name) :].decode("utf-8", "replace") for variable in variables if variable.startswith(name)]
