"""What the index of ended jobs knows about each job, read from its folder without replaying its journal. Everything
here blocks.

A journal whose lines all have correct checksums, and which begins with `accepted` and ends with `ended`, is summed up
from three of its records. In any other case the caller reads the job completely.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from muster.agent.jobs import job_folder
from muster.agent.jobs.cards import release
from muster.agent.jobs.ended.ended_row import Ended, folders_of, numbers_of
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.launch.modes import modelarts
from muster.supervisors.model import journal
from muster.supervisors.model.journal import FORMAT, Record
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import Kind, State
from muster.supervisors.paths import JobPaths, Root
from muster.supervisors.system import trust

#: The last record is first searched for in so many bytes at a journal's end.
_TAIL_BYTES = 4096
_PLANNED = b'"kind":"planned"'
_RESTARTING = b'"kind":"restarting"'
_LOST_WITH_LINE = b'"kind":"lost_bytes"', b'"line":'


@dataclass(frozen=True, slots=True)
class Summary:
    """An ended job: its index entry, the cards that its processes may still use with their known UUIDs, and whether it
    ended in a gap, whose line its logs may lack."""

    row: Ended
    cards: tuple[int, ...]
    lacks_lines: bool = False
    uuids: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class End:
    """The last record of an ended job: its number, and when it was written (seconds since the epoch)."""

    job_id: str
    at: float
    number: int


def ends(root: Root, job_ids: Iterable[str]) -> list[End | None]:
    """The end of each job; None if its journal does not end with the record `ended`: the job has not ended, or is
    damaged."""
    return [_end(job_id, root.job(job_id).journal) for job_id in job_ids]


def summaries(root: Root, job_ids: Iterable[str]) -> list[tuple[str, Summary | None]]:
    """Summaries of ended jobs; None for a job that must be read completely. Removes what a killed supervisor left
    behind."""
    found = []
    for job_id in job_ids:
        paths = root.job(job_id)
        found.append((job_id, _summary(job_id, paths)))
        with suppress(OSError):
            job_folder.tidy(root, paths)
    return found


def _end(job_id: str, path: Path) -> End | None:
    with suppress(OSError, KeyError, TypeError, ValueError):
        record = journal.decode(_last_line(path))
        if record is not None and record["kind"] == Kind.ENDED:
            return End(job_id, float(record["t"]), int(record["n"]))
    return None


def _last_line(path: Path) -> bytes:
    """The last line with its newline; empty if there is none, or if it is torn. Raises OSError."""
    fd = trust.open_own(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        for length in (min(_TAIL_BYTES, size), size):
            data = os.pread(fd, length, size - length)
            start = data.rfind(b"\n", 0, -1) + 1
            if start or length == size:
                break
    finally:
        os.close(fd)
    return data[start:] if data.endswith(b"\n") else b""


def _summary(job_id: str, paths: JobPaths) -> Summary | None:
    try:
        spec = JobSpec.read(paths.spec, job_id)
        lines = trust.read(paths.journal).splitlines(keepends=True)
    except (OSError, ValueError, TypeError):
        return None
    if not lines or any(journal.unsealed(line) is None for line in lines):
        return None
    try:
        first, placed, last = (_record(lines, number) for number in (0, _place(lines), len(lines) - 1))
        if first["kind"] != Kind.ACCEPTED or first["format"] != FORMAT or last["kind"] != Kind.ENDED:
            return None
        state = State(last["state"])
        numbers = placed.get("numbers") or range(placed["first_rank"], placed["first_rank"] + len(placed["devices"]))
        cards = tuple(placed["cards"])
        named = job_id, first["t"], last["t"], state
        row = Ended(
            *named,
            placed["node_rank"],
            numbers_of(numbers),
            folders_of(job_id, spec),
            user=sys.intern(spec.user),
            by_itself=modelarts.has_worker_log(spec),
            outputs_kept=bool(last.get("kept")),
            retried=any(_RESTARTING in line for line in lines),
        )
        if not release.possible(cards, placed["card_kind"], first["boot"]):
            cards = ()
        uuids = {int(card): uuid for card, uuid in placed.get("card_uuids", {}).items()} if cards else {}
    except (KeyError, TypeError, ValueError):
        return None
    lacks_lines = any(all(part in line for part in _LOST_WITH_LINE) for line in lines)
    lacks_lines = lacks_lines and not paths.lines_written.exists()
    return Summary(row, cards, lacks_lines, uuids) if state.final else None


def _place(lines: Sequence[bytes]) -> int:
    """The number of the record with the places of the ranks. Quoted text cannot match: its quotes are escaped."""
    planned = (number for number in range(len(lines) - 1, 0, -1) if _PLANNED in lines[number])
    return next(planned, 0)


def _record(lines: Sequence[bytes], number: int) -> Record:
    """Raises ValueError."""
    record = journal.decode(lines[number])
    if record is None or record.get("n") != number:
        raise ValueError(f"record {number} is out of place")
    return record
