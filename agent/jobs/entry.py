"""A job as the daemon knows it: the sum of its journal's records."""

import errno
import itertools
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path

from muster.agent.changes import Changes
from muster.agent.events.event_store import Event
from muster.agent.events.story import Story, lost_output
from muster.agent.jobs import explained
from muster.agent.jobs.explained import Explained
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model import journal, rank_ends
from muster.supervisors.model.journal import Record
from muster.supervisors.model.lifecycle import Job, OpenGap, Verdict
from muster.supervisors.model.replay import apply
from muster.supervisors.model.spec import JobSpec, Violation
from muster.supervisors.model.states import EXPLAINED, Kind, State, log_owner
from muster.supervisors.paths import JobPaths
from muster.supervisors.supervision_errors import (
    IllegalTransition,
    JournalDamaged,
    SupervisionError,
    Untrusted,
    explain,
)
from muster.supervisors.system import trust

#: Of a file that does not exist, or whose folder does not.
GONE = (FileNotFoundError, NotADirectoryError)
#: Bytes of a journal's beginning that are compared.
_HEAD = 256
#: Events with the numbers of the records that they were derived from.
Told = list[tuple[int, Event]]
_readings = itertools.count()
#: Of an entry; only for comparing.
Version = tuple[
    int, int, int, int, tuple[tuple[int, tuple[float, int]], ...], Explained | None, tuple[tuple[int, int], ...]
]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Entry:
    """A job. `damaged` is empty, or the sentence that says why what is on disk of it cannot be trusted; `job` then is a
    stand-in with the state LOST."""

    job_id: str
    spec: JobSpec
    job: Job
    paths: JobPaths
    damaged: str = ""
    #: Whether that is so because it could not be read (EIO, EMFILE, a file that was moved away), which may pass.
    unread: bool = False
    #: How far the journal was read: bytes, records; and its record `checked`, if it came.
    end: int = 0
    records: int = 0
    #: Records behind these that the supervisor has told of, but cannot write: the disk refuses them.
    owed: list[Record] = field(default_factory=list)
    checked: Record | None = None
    #: What the open gaps have lost by now, by rank: since when, bytes. The supervisor tells it; the journal gets it
    #: more rarely.
    lost_now: dict[int, tuple[float, int]] = field(default_factory=dict)
    #: Which reading of which journal this is: the number of no other one.
    reading: int = field(default_factory=_readings.__next__)
    changed: Changes = field(default_factory=Changes)
    story: Story = field(default_factory=Story)
    #: Whether the daemon carries a stop out that the journal does not know of yet; whether nothing of a job that is
    #: being stopped lives, though its end is not recorded.
    ordered: bool = False
    gone: bool = False
    #: Of a damaged one: what was known of it until then, to find its processes by.
    known: Job | None = None
    #: Read ends of its FIFOs that were held, by rank; who drains them closes them (salvage.py).
    fifos: dict[int, int] = field(default_factory=dict)
    #: How much of the journal is on disk for sure, as its supervisors said: nobody of ours makes it shorter.
    sure: int = 0
    #: How its journal begins, with the time by which it is known to be this job's; empty: that was not seen yet.
    head: bytes = b""
    #: What is wrong at this moment and in no journal: a sentence by source.
    notes: dict[str, str] | None = None
    #: Why its supervisor does nothing at this moment (stuck_supervisor.py); empty: as far as is known it works.
    stuck: str = ""
    #: Pid and start of the supervisor that the nursery has forked, and that is not ready yet though it could be; 0, 0:
    #: there is none.
    awaited: tuple[int, int] = (0, 0)
    #: Its checks are done, and it waits until it is released (`hold` of its spec).
    awaits_release: bool = False
    #: Of a launcher's ranks, by process: those that looks have found while this daemon runs.
    workers: dict[int, int] = field(default_factory=dict)
    #: Its explained verdict, once it has ended and that is known.
    explained: Explained | None = None
    #: While it has none: of earlier attempts the ranks that are the cause, as `Explained.past`.
    past_causes: Mapping[int, int] = field(default_factory=dict)

    @property
    def lacks_explanation(self) -> bool:
        """Whether the job's verdict has no explanation yet."""
        return self.job.state in EXPLAINED and not self.damaged and self.explained is None

    @property
    def past(self) -> Mapping[int, int]:
        """Of earlier attempts the ranks that are the cause, where the supervisor saw another one fail first."""
        return self.past_causes if self.explained is None else self.explained.past

    @property
    def lacks_past(self) -> bool:
        """Whether the job has ended, and only earlier attempts of it have no explanation yet."""
        ended_otherwise = self.job.state.final and self.job.state not in EXPLAINED
        return ended_otherwise and bool(self.job.past) and not self.damaged and self.explained is None

    @property
    def supervisors(self) -> set[int]:
        """Pids: of the one that the journal names, and of the one that is awaited."""
        return {self.job.supervisor_pid, self.awaited[0]} - {0}

    def awaits(self, pid: int, start: int) -> None:
        """This supervisor is late."""
        self.awaited = pid, start

    def note(self, source: str, text: str) -> None:
        """Sets the sentence of a source; an empty text removes it."""
        notes = {**(self.notes or {}), source: text}
        self.notes = {name: said for name, said in notes.items() if said} or None

    def refuses(self, why: str) -> None:
        """Stores why the supervisor cannot write records to the journal (empty: no record waits)."""
        text = f"cannot write its records: {why}; muster keeps them in memory and writes them as soon as it can"
        before = self.notes
        self.note("journal", text if why else "")
        if self.notes != before:
            self.wake()

    @property
    def key(self) -> tuple[float, str]:
        """The sort key of lists."""
        return self.job.accepted_at, self.job_id

    @property
    def state(self) -> State:
        return self.job.state

    def absorb(self, records: list[Record], end: int) -> Told:
        """Applies the journal's next records, which end at offset `end`; returns their events.

        Owed records are applied already (see `agrees`). Raises IllegalTransition.
        """
        known = min(len(self.owed), len(records))
        told = self._apply(records[known:])
        self.owed = self.owed[known:]
        self.records += len(records)
        self.end = end
        if self.job.state.final:
            self.refuses("")
        return told

    def agrees(self, records: list[Record]) -> bool:
        """Whether the journal's next records are the records that the supervisor reported as owed."""
        known = self.owed[: len(records)]
        return known == records[: len(known)]

    def expect(self, record: Record) -> Told:
        """Applies a record that the supervisor owes to the journal, unless it is known. Raises IllegalTransition."""
        if record.get("n") != self.records + len(self.owed):
            return []
        told = self._apply([record])
        self.owed.append(record)
        return told

    def _apply(self, records: list[Record]) -> Told:
        told: Told = []
        for record in records:
            try:
                apply(self.job, record)
                event = self.story.tell(record, self.job, self.job_id)
            except (KeyError, TypeError, ValueError) as error:
                text = f"{self.paths.journal}: record {record.get('n')}: {record.get('kind')}: {error!r}"
                raise IllegalTransition(text) from error
            except IllegalTransition as error:
                raise IllegalTransition(f"{self.paths.journal}: {error}") from error
            if record["kind"] == Kind.CHECKED:
                self.checked = record
            elif record["kind"] == Kind.RESTARTING:
                self.checked = None  # a node that was not fit is looked at again
            if event is not None:
                told.append((record["n"], event))
        return told

    def become(self, other: "Entry") -> None:
        """Takes what another reading of the same job has found, for all who have this object; see `wake`."""
        for name in (
            "spec", "job", "damaged", "unread", "end", "records", "owed", "checked", "reading", "story", "explained",
            "past_causes",
        ):  # fmt: skip
            setattr(self, name, getattr(other, name))
        self.known = other.known

    def start_over(self) -> None:
        """Resets the entry, to read the journal from its beginning."""
        self.job, self.story, self.checked, self.owed = Job(), Story(), None, []
        self.end = self.records = 0
        self.reading = next(_readings)

    @property
    def version(self) -> Version:
        """Changes with everything that muster shows of the job: its journal, records that could not be written yet,
        and, while output is being lost."""
        return (
            self.reading,
            self.records,
            len(self.owed),
            len(self.job.missing_lines),
            tuple(self.lost_now.items()),
            self.explained,
            tuple(self.past_causes.items()),
        )

    def gap(self, rank: int) -> OpenGap | None:
        """The open gap of a rank (JOB: of the job's own log), with what it has lost by now."""
        gap = self.job.gaps.get(rank)
        since, lost = self.lost_now.get(rank, (0.0, 0))
        return replace(gap, bytes=max(gap.bytes, lost)) if gap is not None and gap.since == since else gap

    def warnings(self) -> list[str]:
        """What its journal says is wrong with it, a sentence each; `notes` are what no journal has."""
        job = self.job
        gaps = [
            lost_output(rank, gap.bytes, gap.since, gap.error, is_open=True)
            for rank in job.gaps
            if (gap := self.gap(rank)) is not None
        ]
        lost = [
            f"{log_owner(rank.rank)}: {rank.lost_bytes} bytes of output could not be written"
            + (f": {rank.lost_why}" if rank.lost_why else "")
            for rank in (*job.ranks, *job.services)
            if rank.lost_bytes and rank.rank not in job.gaps
        ]
        missing = [
            f"{log_owner(rank)}: its log does not say so yet, because it cannot be written: {line.strip()}"
            for rank, line in job.missing_lines.items()
        ]
        return [*([self.damaged] if self.damaged else []), *job.warnings, *gaps, *lost, *missing]

    def wake(self) -> None:
        """Wakes all who wait for a change."""
        self.changed.tell()

    def give_up(self, text: str) -> None:
        """Marks the job as damaged: nothing on disk is trusted. Its cards stay known, because its processes may still
        use them."""
        self.damaged = text
        self.reading = next(_readings)
        before = self.known = self.known or self.job
        self.job = Job(state=State.LOST, verdict=Verdict(rank_ends.OWN_FAILURE, text))
        self.job.digest, self.job.boot_id = before.digest, before.boot_id
        self.job.accepted_at, self.job.accepted_up = before.accepted_at, before.accepted_up
        self.job.cards, self.job.card_kind, self.job.card_used = before.cards, before.card_kind, before.card_used
        self.job.card_uuids = before.card_uuids

    @property
    def has_folder(self) -> bool:
        """Whether the job's folder is in its place. Blocks."""
        return self.paths.folder.is_dir() and not self.paths.folder.is_symlink()

    def take_for_gone(self, path: Path) -> None:
        """Marks a job whose file or folder was removed; an operator may put it back."""
        self.unread = True
        what, do = "somebody removed it, or moved it away", "put it back"
        if not self.has_folder:
            path = self.paths.folder
            if os.path.lexists(path):
                what, do = "it is not a folder: somebody replaced the job's folder", "put the job's folder back"
        self.give_up(
            f"{path}: {what}: {do}, or end its processes with `muster stop {self.job_id}` and remove what is left with "
            f"`muster rm --force {self.job_id}`"
        )

    def refuse_shorter(self) -> None:
        """Raises JournalDamaged if the journal was emptied, truncated or replaced. Blocks. Raises OSError."""
        if not self.has_folder:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.paths.folder))
        sure = self.sure  # before the look: it grows meanwhile, on the loop, and the file before it
        with open(trust.open_own(self.paths.journal, os.O_RDONLY), "rb") as file:
            size, head = os.fstat(file.fileno()).st_size, os.pread(file.fileno(), _HEAD, 0)
            if size >= sure and head and head == self.head:
                return
            line = file.readline()
        # First of all whose it is: another job's may be shorter as well.
        first = journal.decode(line)
        if self.records and first is not None and first.get("t") != self.job.accepted_at:
            what = "it is the journal of another job, which somebody put here"
            raise JournalDamaged(str(self.paths.journal), 1, what)
        if size < sure:
            what = f"somebody {'cut' if size else 'emptied'} it: it has {size} bytes, and had {sure}"
            raise JournalDamaged(str(self.paths.journal), 1, what)
        if line[:1] == b"\0":  # its writer continued after the hole
            raise JournalDamaged(str(self.paths.journal), 1, "somebody emptied it, and its first records are lost")
        _, told, rest = head.partition(b'"t":')
        self.head = head if self.records and first is not None and told and b"," in rest else b""


def fetch(path: Path, end: int, number: int, size: int | None) -> tuple[list[Record], int]:
    """The records of a journal from the offset `end` on, where the one with this number begins, and the offset behind
    them. Blocks.

    Stops at `size` bytes (None: takes all): what is beyond may still be taken back by its writer.
    Raises JournalDamaged, OSError.
    """
    records = []
    for record in journal.read(path, end, number).records:
        length = len(journal.encode(record))
        if size is not None and end + length > size:
            break
        records.append(record)
        end += length
    return records, end


def load(job_id: str, paths: JobPaths) -> tuple[Entry, Told]:
    """A job from its folder, and all that there is to tell of it. Damage is never raised: the entry says it."""
    entry = Entry(job_id, JobSpec(job_id, ()), Job(), paths)
    try:
        if not entry.has_folder:  # a link may lead to another user's files
            raise NotADirectoryError(paths.folder)
        entry.spec = JobSpec.read(paths.spec, job_id)
    except Untrusted as error:
        entry.give_up(str(error))
    except OSError as error:
        _not_read(entry, paths.spec, error)
    except (ValueError, TypeError) as error:
        entry.give_up(f"{paths.spec}: is damaged: {error}")
    told: Told = []
    if not entry.damaged:
        try:
            told = entry.absorb(*fetch(paths.journal, 0, 0, None))
            if entry.records == 0:
                entry.give_up(f"{paths.journal}: has no record")
        except JournalDamaged as error:
            with suppress(IllegalTransition):
                entry.absorb(list(error.records), 0)
            entry.give_up(str(error))
        except SupervisionError as error:
            entry.give_up(str(error))
        except OSError as error:
            _not_read(entry, paths.journal, error)
    if entry.lacks_explanation or entry.lacks_past:
        entry.explained = explained.read(paths.explained)
    if entry.job.missing_lines and paths.lines_written.exists():
        entry.job.missing_lines.clear()
    if entry.damaged:
        told = []
        if not entry.job.accepted_at:
            entry.job.accepted_at = _made_at(paths)
    return entry, told


def _not_read(entry: Entry, path: Path, error: OSError) -> None:
    if isinstance(error, GONE):
        entry.take_for_gone(path)
        return
    entry.unread = True
    entry.give_up(f"{path}: cannot be read: {explain(error)}; musterd tries again")


def _made_at(paths: JobPaths) -> float:
    """Replaces a time that cannot be read, so that listings have an order."""
    try:
        return paths.folder.stat().st_mtime
    except OSError:
        return 0.0


def no_such_rank(field: str, rank: int, here: Collection[int]) -> Violation:
    """Of a request that names, in `field`, a rank that is not one of `here`."""
    there = f"{min(here)} to {max(here)}" if here else "none"
    return Violation(field, f"{rank}: the ranks of this job on this node are {there}")
