"""What the index of ended jobs knows of each, read from its folder without replaying its journal. Everything here
blocks.

A journal whose lines all have their checksums, which begins with `accepted` and ends with `ended`, is summed up from
three of its records. Whatever else is found, the caller reads the job as a whole.
"""

import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from muster.agent.jobs import job_folder
from muster.agent.jobs.cards import release
from muster.agent.jobs.ended.ended_row import Ended, folders_of, numbers_of
from muster.supervisors.model import journal
from muster.supervisors.model.journal import FORMAT, Record
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import Kind, State
from muster.supervisors.paths import JobPaths, Root
from muster.supervisors.system import trust

#: Bytes at a journal's end in which its last record is sought first.
_TAIL_BYTES = 4096
_PLANNED = b'"kind":"planned"'
_LOST_WITH_LINE = b'"kind":"lost_bytes"', b'"line":'


@dataclass(frozen=True, slots=True)
class Summary:
    """Of an ended job: its index entry, the cards that somebody of it may still be on with the UUIDs that are known of
    them, and whether it ended inside a gap, whose line its logs may lack."""

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
    """For each job its end; None where its journal does not end with the record `ended`: it has not ended, or it is
    damaged."""
    return [_end(job_id, root.job(job_id).journal) for job_id in job_ids]


def summaries(root: Root, job_ids: Iterable[str]) -> list[tuple[str, Summary | None]]:
    """Of jobs that have ended; None for one that must be read as a whole. What a killed supervisor could not remove is
    removed."""
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
    """With its newline; empty where there is none, or where it is torn. Raises OSError."""
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
        lines = trust.read(paths.journal).split(b"\n")
    except (OSError, ValueError, TypeError):
        return None
    if lines.pop() != b"" or not lines or any(line[:9] != b"%08x " % zlib.crc32(line[9:]) for line in lines):
        return None
    try:
        first, placed, last = (_record(lines, number) for number in (0, _place(lines), len(lines) - 1))
        if first["kind"] != Kind.ACCEPTED or first["format"] != FORMAT or last["kind"] != Kind.ENDED:
            return None
        state = State(last["state"])
        numbers = placed.get("numbers") or range(placed["first_rank"], placed["first_rank"] + len(placed["devices"]))
        cards = tuple(placed["cards"])
        row = Ended(
            job_id, first["t"], last["t"], state, placed["node_rank"], numbers_of(numbers), folders_of(job_id, spec)
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
    """The number of the record that says where the ranks are: what is quoted in a text has other quotes."""
    planned = (number for number in range(len(lines) - 1, 0, -1) if _PLANNED in lines[number])
    return next(planned, 0)


def _record(lines: Sequence[bytes], number: int) -> Record:
    """Raises ValueError."""
    record = journal.decode(lines[number] + b"\n")
    if record is None or record.get("n") != number:
        raise ValueError(f"record {number} is not where it belongs")
    return record
