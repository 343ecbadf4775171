"""Stacks in a job's folder, `stacks-<n>.json`, which are deleted with the job.

Few are stored: of those taken on request only the last ones, so that frequent requests do not push out the stacks taken
when the job hung. Each file is written completely or not at all, and has a bounded size. Everything here blocks.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import structlog

from muster.probes import typed
from muster.probes.kernel.dataclass import dataclass
from muster.probes.stacks import ProcessStacks
from muster.probes.waits import RankStack
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.system import trust
from muster.supervisors.system.atomic_file import replace_file

#: The occasion of a request. The caller names any other occasion.
REQUEST = "request"
#: How many are stored per job, and how many of them from requests.
MAX_KEPT, MAX_REQUESTED = 8, 3
#: Limit of one file in bytes.
MAX_BYTES = 1 << 20
_NAME = re.compile(r"stacks-(\d{1,9})\.json")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JobStacks:
    """Stacks of a job. `at` in seconds since the epoch (0: none were taken); `occasion`: "request", "suspected hang",
    "hung"; `notes`: sentences about what is missing, and which permission it needs."""

    at: float
    occasion: str
    attempt: int
    processes: tuple[ProcessStacks, ...]
    notes: tuple[str, ...]

    def of_ranks(self, job: Job) -> tuple[RankStack, ...]:
        """Where each rank waits."""
        from muster.probes.stacks.rank_stacks import of_ranks  # only now: the daemon starts sooner

        return of_ranks(self.processes, {rank.rank: rank.pid for rank in job.ranks}, self.at)


@dataclass(frozen=True, slots=True)
class _Head:
    """What decides whether a file is kept."""

    occasion: str


def write(folder: Path, taken: JobStacks) -> Path:
    """Stores these, and removes surplus ones. Raises OSError, and leaves nothing behind."""
    there = dict(_files(folder))
    path = folder / f"stacks-{max(there, default=0) + 1}.json"
    # It describes the program of another user: readable for the daemon's user only.
    replace_file(path, encoded(taken))
    _thin(folder)
    return path


def read_all(folder: Path, missing: list[str] | None = None) -> list[JobStacks]:
    """Oldest first; damaged files are left out, and a sentence about each is added to `missing`. Raises OSError if the
    folder cannot be listed."""
    found = []
    for _, path in sorted(_files(folder)):
        try:
            found.append(typed.decode(trust.read(path), JobStacks))
        except FileNotFoundError:
            continue  # removed meanwhile
        except (OSError, ValueError) as error:
            if missing is None:
                _log.warning("stacks.unreadable", path=str(path), error=str(error))
            else:
                missing.append(f"{path}: stacks that cannot be read: {error}")
    return found


def encoded(taken: JobStacks, most: int = MAX_BYTES) -> bytes:
    """As JSON of at most so many bytes. If that is too much, it leaves out the least useful tasks first, then all but
    the Python threads, then processes."""
    data = msgspec.json.encode(taken)
    for less in (_without_waiting, _without_tasks, _without_threads):
        if len(data) <= most:
            return data
        taken = replace(taken, processes=tuple(less(process) for process in taken.processes))
        data = msgspec.json.encode(taken)
    count = len(taken.processes)
    while len(data) > most and taken.processes:
        kept = taken.processes[: len(taken.processes) // 2]
        note = f"{count - len(kept)} of {count} processes left out: all stacks together were too large"
        taken = replace(taken, processes=kept, notes=(*taken.notes[:16], note))
        data = msgspec.json.encode(taken)
    return data


def _without_waiting(process: ProcessStacks) -> ProcessStacks:
    """Without the tasks that only wait."""
    kept = tuple(task for task in process.tasks if task.tid == process.pid or task.state != "S")
    return replace(process, tasks=kept)


def _without_tasks(process: ProcessStacks) -> ProcessStacks:
    return replace(process, tasks=tuple(task for task in process.tasks if task.tid == process.pid))


def _without_threads(process: ProcessStacks) -> ProcessStacks:
    return replace(process, python=process.python[:4])


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    """With their numbers. Raises OSError."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if match := _NAME.fullmatch(entry.name):
                yield int(match[1]), Path(entry.path)


def _thin(folder: Path) -> None:
    """Removes the oldest from requests, then the oldest of all. Raises OSError."""
    there = dict(_files(folder))
    asked = []
    for number, path in sorted(there.items()):
        try:
            if typed.decode(trust.read(path), _Head).occasion == REQUEST:
                asked.append(number)
        except (OSError, ValueError):
            asked.append(number)  # it cannot be read
    for number in asked[: max(0, len(asked) - MAX_REQUESTED)]:
        there.pop(number).unlink(missing_ok=True)
    for number in sorted(there)[: max(0, len(there) - MAX_KEPT)]:
        there[number].unlink(missing_ok=True)
