"""What a folder of events holds when the daemon starts: segments, the last record of each job, the next number."""

import os
from collections.abc import Container
from dataclasses import replace
from pathlib import Path

import msgspec
import structlog

from muster.agent.events import segments
from muster.agent.events.segments import Segment
from muster.agent.host import state_file
from muster.agent.host.state_folder import DEGRADES, event_epoch, new_epoch
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.system.atomic_file import sync_folder

#: By how much the numbers of another boot are ahead.
BOOT_GAP = 1 << 20
#: And by how much those of another daemon: its predecessor may have shown some that it could not write.
START_GAP = 1 << 16
#: Kinds without a record in a journal of which the store knows the last event of each job (of the node: ""). A daemon
#: that finds such a fact elsewhere tells of it, if an earlier one was killed before it did.
REMEMBERED = frozenset({
    "job.explained",
    "job.suspected_hang", "job.hung", "job.driver_hang", "job.recovered", "job.hang_not_acted",
    "job.slow_rank", "job.slow_rank_cleared",
    "job.cards_held", "job.cards_free",
    "job.supervisor_stuck", "job.supervisor_works",
    "node.reset",
})  # fmt: skip

_log = structlog.get_logger(__name__)


class Marks(msgspec.Struct):
    """The last record of each job that became an event, and by job the time of the last event of each kind in
    REMEMBERED: saved before the segments with these events are dropped."""

    boot: str = ""
    jobs: dict[str, tuple[float, int]] = {}  # msgspec copies it
    told: dict[str, dict[str, float]] = {}

    def tell(self, kind: str, job_id: str, at: float) -> None:
        """Takes an event."""
        if kind in REMEMBERED:
            self.told.setdefault(job_id, {})[kind] = at

    def keep_only(self, job_ids: Container[str]) -> None:
        """Forgets the other jobs."""
        self.jobs = {job_id: mark for job_id, mark in self.jobs.items() if job_id in job_ids}
        self.told = {job_id: kinds for job_id, kinds in self.told.items() if not job_id or job_id in job_ids}

    def copy(self) -> "Marks":
        """Stays as it is now."""
        return Marks(self.boot, dict(self.jobs), {job_id: dict(kinds) for job_id, kinds in self.told.items()})


@dataclass(frozen=True, slots=True)
class StoreContents:
    """What a folder holds. `trouble`: why it cannot be written, a sentence."""

    epoch: str
    found: list[Segment]
    marks: Marks
    next_number: int
    trouble: str = ""


def load(folder: Path, boot: str) -> StoreContents:
    """Mends a torn end, and begins a segment where the boot is another. Raises OSError where it cannot be read."""
    try:
        return _open(folder, boot, write=True)
    except OSError as error:
        if error.errno not in DEGRADES:
            raise
        trouble = f"cannot write events to {folder}: {error.strerror}; new events wait in memory"
        return replace(_open(folder, boot, write=False), trouble=trouble)


def _open(folder: Path, boot: str, write: bool) -> StoreContents:
    try:
        epoch = event_epoch(folder)
    except OSError:
        if write:
            raise
        epoch = new_epoch()
    try:
        marks = state_file.read(folder / "marks", Marks)
    except FileNotFoundError:
        marks = Marks()
    except ValueError as error:  # also invalid UTF-8; then some old events may come again
        _log.warning("events.marks_damaged", error=str(error))
        marks = Marks()

    def told(line: segments.Line) -> None:
        if line.n >= 0:
            marks.jobs[line.j] = (line.i, line.n)
        marks.tell(line.k, line.j, line.t)

    found = segments.scan(folder, told, mend=write)
    number = found[-1].next_number + (START_GAP if marks.boot == boot else BOOT_GAP) if found else 1
    if not write:
        return StoreContents(epoch, found or [Segment(folder / "none", 1, next_number=1)], marks, number)
    if not found or marks.boot != boot:
        found.append(segments.create(folder, number))
    if marks.boot != boot:
        sync_folder(folder)
        marks.boot = boot
        state_file.write(folder / "marks", marks)
    os.close(os.open(found[-1].path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
    return StoreContents(epoch, found, marks, number)
