"""Passes log files to a program of the operator, which copies them to the site's log store.

It runs the program for an ended job, with all its files, and before that for each batch of rotated segments. What the
program took (it exited with 0) is noted in the job's folder, `uploaded`. What it did not take is passed again, across
restarts of the daemon, until the program takes it or the job is deleted.
"""

import contextlib
import random
import socket
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

import anyio
import msgspec
import structlog

from muster.agent import threads
from muster.agent.changes import Changes
from muster.agent.config.schema import Config
from muster.agent.errors import JobNotFound
from muster.agent.events.event_store import Event, EventStore
from muster.agent.host import operator_program, state_file
from muster.agent.host.operator_program import ProgramFailed
from muster.agent.jobs import log_ownership
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.entry import Entry
from muster.probes.kernel import marks
from muster.probes.kernel.backoff import Backoff
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.output import log_names
from muster.supervisors.output.log_segments import segment_path
from muster.supervisors.paths import Root

#: At most so many runs of the program at the same time.
AT_ONCE = 2
#: Seconds until the first retry, which double with each retry, and their limit.
FIRST_RETRY_S, MAX_RETRY_S = 5.0, 3600.0
#: Seconds between two searches for files to pass on, if no event starts one.
LOOK_S = 30.0

_log = structlog.get_logger(__name__)


class Uploaded(msgspec.Struct):
    """`uploaded` in a job's folder: names of the taken segments, without `.gz`, and whether all files were taken."""

    segments: list[str] = []  # msgspec copies it
    all: bool = False


@dataclass(slots=True)
class Lot:
    """The files of one job to pass on. `due` by the loop's clock; `ended_at` in seconds since the epoch, 0 for a job
    that has not ended."""

    job_id: str
    accepted_at: float
    ended_at: float = 0.0
    uploaded: Uploaded | None = None
    failures: int = 0
    why: str = ""
    due: float = 0.0
    busy: bool = False
    #: Rotated segments that can be passed on, and whether all files can.
    segments: list[str] = field(default_factory=list)
    ended: bool = False


class UploadedJobs(Protocol):
    """The part of the registry that uploads use."""

    async def get(self, job_id: str) -> Entry:
        """A job. Raises JobNotFound."""

    def job(self, job_id: str) -> Entry | Ended | None:
        """A live job, or the index entry of an ended one."""


class Uploads:
    """Belongs to one event loop."""

    def __init__(
        self,
        root: Root,
        settings: Callable[[], Config],
        events: EventStore,
        registry: UploadedJobs,
        compressed: Callable[[str], bool],
        over: Callable[[], None],
    ) -> None:
        """`settings` gives the present configuration; `compressed`: whether a job's file is being compressed; `over` is
        called with each job that is no longer `busy`."""
        self._registry = registry
        self._compressed = compressed
        self._over = over
        self._root = root
        self._settings = settings
        self._events = events
        self.lots: dict[str, Lot] = {}
        self._told = Changes()
        self._threads = threads.Pool(AT_ONCE)

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator."""
        failing = [lot for lot in self.lots.values() if lot.failures]
        if not failing:
            return []
        worst = max(failing, key=lambda lot: lot.failures)
        return [
            f"logs: upload: the program did not take the files of {len(failing)} job(s); they stay; job "
            f"{worst.job_id}: {worst.why}; tried {worst.failures} time(s)"
        ]

    @property
    def work(self) -> list[str]:
        """What is being done, and what waits for it: sentences."""
        running = [lot for lot in self.lots.values() if lot.busy]
        waiting = sum(not lot.busy and lot.failures == 0 and wants(lot) for lot in self.lots.values())
        more = f"; {waiting} more job(s) wait" if waiting else ""
        return [f"the upload program has the files of {', '.join(lot.job_id for lot in running)}{more}"] * bool(running)

    def ended(self, row: Ended) -> None:
        """All files of this job are complete."""
        lot = self._lot(row)
        lot.ended, lot.ended_at = True, row.since
        self.wake()

    def rotated(self, job: Entry | Ended, segments: list[str]) -> None:
        """These segments of a job's logs, by their names without `.gz`, exist and will not change any more."""
        if isinstance(job, Ended) and job.uploaded:
            return
        lot = self._lot(job)
        if lot.segments != segments:
            lot.segments = segments
            self.wake()

    def forget(self, job_id: str) -> None:
        """The job's record was removed."""
        self.lots.pop(job_id, None)

    def taken(self, job_id: str) -> list[str]:
        """Names of a job's taken segments, without `.gz`."""
        lot = self.lots.get(job_id)
        return lot.uploaded.segments if lot is not None and lot.uploaded is not None else []

    def _lot(self, job: Entry | Ended) -> Lot:
        lot = self.lots.get(job.job_id)
        if lot is None or lot.accepted_at != job.key[0]:
            lot = self.lots[job.job_id] = Lot(job.job_id, job.key[0])
        return lot

    def busy(self, job_id: str) -> bool:
        """Whether the program is running for this job."""
        return (lot := self.lots.get(job_id)) is not None and lot.busy

    async def run(self) -> None:
        """Passes files on until cancelled."""
        async with anyio.create_task_group() as group:
            for _ in range(AT_ONCE):
                group.start_soon(self._serve)

    async def _serve(self) -> None:
        while True:
            told = self._told.count
            lot = self._next() if self._settings().logs.upload else None
            if lot is None:
                now = anyio.current_time()
                due = min((lot.due for lot in self.lots.values() if lot.due > now), default=now + LOOK_S)
                with anyio.move_on_at(min(due, now + LOOK_S)):
                    await self._told.beyond(told)
                continue
            lot.busy = True
            try:
                await self._hand_over(lot)
            except Exception as error:  # a bug here must not end the daemon
                _log.exception("logs.upload_defect", job=lot.job_id)
                self._failed(lot, f"internal error: {error!r}")
            finally:
                lot.busy = False
                self._over()

    def wake(self) -> None:
        """Looks again: a compression has ended, so a waiting file may be ready."""
        self._told.tell()

    def _next(self) -> Lot | None:
        """The job that ended first among those with files to pass on now."""
        now = anyio.current_time()
        ready = [
            lot
            for lot in self.lots.values()
            if not lot.busy and lot.due <= now and wants(lot) and not self._compressed(lot.job_id)
        ]
        return min(ready, key=lambda lot: lot.ended_at or time.time(), default=None)

    async def _hand_over(self, lot: Lot) -> None:
        logs = self._settings().logs
        entry: Entry | None
        try:
            entry = await self._registry.get(lot.job_id)
        except JobNotFound:
            entry = None
        if entry is None or entry.key[0] != lot.accepted_at:  # its record was removed
            if self.lots.get(lot.job_id) is lot:
                del self.lots[lot.job_id]
            return
        try:
            if lot.uploaded is None:
                lot.uploaded = await self._threads.run(_load, entry.paths.uploaded)
            if not wants(lot):
                self._done(lot)
                return
            ended, taken = lot.ended, set(lot.uploaded.segments)
            segments = [name for name in lot.segments if name not in taken]
            files = await self._threads.run(listed_files, self._root, entry, None if ended else set(segments), taken)
            if files:
                facts = {
                    marks.JOB_ID: entry.job_id,
                    "MUSTER_STATE": str(entry.job.state),
                    "MUSTER_EXIT_CODE": str(entry.job.verdict.exit_code) if entry.job.verdict is not None else "",
                    "MUSTER_NODE_RANK": str(entry.job.node_rank),
                    "MUSTER_LOG_DIR": str(self._root.log),
                }
                stdin = msgspec.json.encode(_said(entry, ended, files))
                setting = "upload_timeout_s in [logs]"
                await operator_program.run(logs.upload, facts, stdin, logs.upload_timeout_s, setting, patient=True)
            there = {_plain(Path(file["path"]).name) for file in files}
            uploaded = Uploaded([*lot.uploaded.segments, *(name for name in segments if name in there)], ended)
            if ended and files:
                size = sum(file["bytes"] for file in files)
                text = f"{len(files)} log file(s) with {size} bytes were passed to {logs.upload[0]}"
                self._tell("logs.uploaded", lot, text, files=len(files), bytes=size, tries=lot.failures + 1)
                await self._events.stored()  # after a kill before the note the program, too, is called again
            await self._threads.run(_store, entry.paths.uploaded, uploaded)
        except (ProgramFailed, OSError) as error:
            if entry.paths.folder.exists():  # otherwise it was deleted meanwhile
                self._failed(lot, str(error))
            return
        lot.uploaded = uploaded
        lot.segments = [name for name in lot.segments if name in there or name not in segments]  # others were removed
        lot.failures, lot.why = 0, ""
        self._done(lot)

    def _done(self, lot: Lot) -> None:
        """Forgets an ended job once all its files were taken."""
        if lot.uploaded is None or not lot.uploaded.all:
            return
        row = self._registry.job(lot.job_id)
        if isinstance(row, Ended) and row.accepted_at == lot.accepted_at:
            row.uploaded = True
        if self.lots.get(lot.job_id) is lot:
            del self.lots[lot.job_id]

    def _failed(self, lot: Lot, why: str) -> None:
        lot.failures += 1
        wait = Backoff(FIRST_RETRY_S, MAX_RETRY_S).after(lot.failures) * random.uniform(0.5, 1.0)
        lot.due = anyio.current_time() + wait
        if why != lot.why:  # each reason once, not each try
            lot.why = why
            self._tell("logs.upload_failed", lot, f"log files were not taken and stay: {why}", tries=lot.failures)
            _log.warning("logs.upload_failed", job=lot.job_id, error=why)

    def _tell(self, kind: str, lot: Lot, message: str, **attributes: int) -> None:
        shown = {key: str(value) for key, value in attributes.items()}
        self._events.append([(None, Event(time.time(), kind, lot.job_id, message=message, attributes=shown))])


def wants(lot: Lot) -> bool:
    """Whether there are files to pass on."""
    if lot.uploaded is None:
        return lot.ended or bool(lot.segments)
    return not lot.uploaded.all and (lot.ended or not set(lot.segments) <= set(lot.uploaded.segments))


def waiting(root: Root, rows: Iterable[Ended]) -> list[Ended]:
    """The jobs with files that were not taken, as their folders say. Blocks."""
    found = []
    for row in rows:
        with contextlib.suppress(OSError):
            row.uploaded = _load(root.job(row.job_id).uploaded).all
        if not row.uploaded:
            found.append(row)
    return found


def _load(path: Path) -> Uploaded:
    with contextlib.suppress(FileNotFoundError, ValueError):
        return state_file.read(path, Uploaded)
    return Uploaded()


def _store(path: Path, uploaded: Uploaded) -> None:
    state_file.write(path, uploaded)


def listed_files(root: Root, entry: Entry, only: set[str] | None, taken: set[str]) -> list[dict[str, Any]]:
    """Files to pass on: the segments `only` if given, by their names without `.gz`, else all files; and none that was
    `taken`. Raises OSError."""
    names, folders = only, dict[Path, int]()
    if names is None:
        found = log_ownership.of_job(root.log, log_ownership.owner(entry))
        names, folders = {_plain(path.name) for path in found.paths}, found.folders
        for log, layout in log_ownership.layouts(found).items():
            names |= {segment_path(log, piece.start, piece.end).name for piece in layout.segments}
    listed = []
    for name in sorted(names - taken):
        whose = log_names.parsed(name)
        if whose is None or whose.passing:
            continue
        # In this order: a compressor, such as an earlier daemon's, makes the second before it removes the first.
        for path in (root.log / name, root.log / f"{name}.gz"):
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    listed.append({"path": str(path), "kind": whose.kind, "rank": whose.rank, "bytes": status.st_size})
                    break
    for folder, size in folders.items():
        listed.append({"path": str(folder), "kind": "folder", "rank": None, "bytes": size})
    return listed


def _plain(name: str) -> str:
    return name.removesuffix(".gz")


def _said(entry: Entry, ended: bool, files: list[dict[str, Any]]) -> dict[str, Any]:
    """The program's input (docs/guides/logs-keeping.md). It contains neither environment nor command."""
    job, verdict = entry.job, entry.job.verdict
    return {
        "job": entry.job_id,
        "node": socket.gethostname(),
        "node_rank": job.node_rank,
        "labels": entry.spec.labels,
        "state": job.state,
        "ended": ended,
        "accepted_at": job.accepted_at,
        "ended_at": job.ended_at or None,
        "attempts": job.attempt + 1,
        "exit_code": verdict.exit_code if verdict is not None else None,
        "summary": verdict.summary if verdict is not None else "",
        "files": files,
    }
