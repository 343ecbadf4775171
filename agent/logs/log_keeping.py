"""Keeps the log folder: removes files, compresses rotated segments, passes files to a program, and writes worker logs
(`log_completion`). If any of that hangs or fails, the daemon and its jobs go on without it."""

import contextlib
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
import structlog
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from muster.agent.changes import Changes
from muster.agent.config.schema import Config
from muster.agent.events.event_store import Event, EventStore
from muster.agent.host import state_file
from muster.agent.host.log_folder import folder as known_folder
from muster.agent.jobs import log_ownership
from muster.agent.jobs.ended.collected_logs import CollectedLogs
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.entry import Entry
from muster.agent.jobs.log_ownership import Files, Owner
from muster.agent.jobs.registry import Registry
from muster.agent.logs import log_keeping_rule
from muster.agent.logs.log_completion import LogCompletion
from muster.agent.logs.log_keeping_rule import Caps, Disk, Kept
from muster.agent.logs.log_upload import Uploads
from muster.probes.calls import watched
from muster.probes.calls.script import ENV, LINGER_S, Script
from muster.probes.checks.result import one_line
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.output import gzip_members, log_segments, rotation
from muster.supervisors.paths import Root
from muster.supervisors.system.settings_file import LogSettings, SupervisorSettings
from muster.supervisors.system.settings_file import write as write_settings

#: Seconds between two looks at the log folder; limit of a look or removal.
LOOK_S, SLOW_S = 60.0, 600.0
#: Seconds until a retry of settings that could not be written.
SETTLE_AGAIN_S = 5.0
_SETTLE = "write settings"
#: A segment that could not be compressed is left alone for so many seconds.
AGAIN_S = 3600.0
#: How many jobs' files one look at the folder lists for removal.
REMOVE_AT_ONCE = 250

T = TypeVar("T")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a look at the log folder found. `owners`: known jobs by id, of several with one id the last that ended;
    `plain`: segments that are not compressed, each with its job; `rotated`: names of a job's segments, without `.gz`;
    `collected`: jobs whose records were collected, by id."""

    owners: dict[str, Owner]
    files: dict[str, Files]
    disk: Disk
    plain: list[tuple[str, Path]]
    rotated: dict[str, list[str]]
    collected: dict[str, Ended]


class _Removal(msgspec.Struct):
    """A removal of one job's files, on the disk from before it begins until its event is; `name` as in Files."""

    name: str
    job: str
    files: int
    bytes: int
    why: str

    def event(self) -> Event:
        """`logs.removed`."""
        text = f"{self.files} log file(s) with {self.bytes} bytes were removed: {self.why}"
        said = {"bytes": str(self.bytes), "why": self.why}
        return Event(time.time(), "logs.removed", self.job, message=text, attributes=said)


class LogKeeping:
    """Belongs to one event loop."""

    def __init__(
        self,
        root: Root,
        settings: Callable[[], Config],
        events: EventStore,
        registry: Registry,
        collected: CollectedLogs,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`settings` gives the present configuration; `collected` knows the files of jobs whose records were collected;
        `clock` gives the time in seconds since the epoch."""
        self._collected = collected
        self._root = root
        self._settings = settings
        self._events = events
        self._registry = registry
        self._clock = clock
        self.uploads = Uploads(root, settings, events, registry, self._is_compressing, self._compress_on)
        self._completion = LogCompletion(root, settings, events, registry, self.uploads)
        self._told = Changes()
        self._plain: list[tuple[str, Path]] = []
        self._some_plain = Changes()
        self._compressing = ""
        #: The segment that is being compressed, and since when (time.monotonic()).
        self._packing: tuple[Path, float] | None = None
        #: Segments that are left alone until a time; and segments that another process compresses.
        self._left: dict[Path, float] = {}
        self._elsewhere: set[Path] = set()
        self._troubles: dict[str, str] = {}
        #: The removal of which an earlier daemon did not tell, until the first look has.
        self._begun: _Removal | None = None

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator."""
        return [*self._troubles.values(), *self.uploads.trouble, *self._completion.trouble]

    @property
    def work(self) -> list[str]:
        """What is being done with files at this moment: sentences."""
        found = self.uploads.work
        if self._packing is not None:
            path, since = self._packing
            left = {path, *(other for _, other in self._plain)}  # a look may have seen it, too
            size = sum(map(log_segments.plain_size, left)) / 1e6
            passed = time.monotonic() - since
            found.append(f"compresses {path.name} since {passed:.0f} s; {len(left)} segment(s) left, {size:.0f} MB")
        return found

    def reload(self) -> None:
        """Looks at once: the configuration may have changed."""
        self._told.tell()

    async def finish(self) -> None:
        """See LogCompletion.finish."""
        await self._completion.finish()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keeps the folder until cancelled."""
        await self._settle()
        self._registry.ended.on_ended.append(self._completion.ended)
        self._registry.ended.on_removed.append(self._completion.removed)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.uploads.run)
            tasks.start_soon(self._completion.run)
            tasks.start_soon(self._compress)
            task_status.started()
            await self._registry.ended.indexed.wait()  # until then, a file of an unknown job has no owner
            self._begun = await self._apart("look", functools.partial(_begun, self._root.removing))
            while True:
                told = self._told.count
                try:
                    await self._look()
                except Exception as error:  # a bug here must not end the daemon
                    _log.exception("logs.defect")
                    self._troubles["look"] = f"logs: internal error: {error!r}"
                gzip_members.forget()  # frees up to 33 MiB; a reader that continues inflates a few again
                # Retry what could not be written: the disk may accept it now.
                unsettled = _SETTLE in self._troubles
                with anyio.move_on_after(SETTLE_AGAIN_S if unsettled else LOOK_S):
                    await self._told.beyond(told)
                if unsettled or self._told.count != told:
                    await self._settle()

    async def _settle(self) -> None:
        """Writes the settings that supervisors use."""
        logs, hang, jobs = self._settings().logs, self._settings().hang, self._settings().jobs
        # Supervisors must not remove files that the program has not taken; but the program must get files to take.
        most = (0, logs.max_job_bytes) if logs.upload else (logs.max_job_bytes, 0)
        kept = LogSettings(logs.max_file_bytes, *most)
        settings = SupervisorSettings(kept, hang.flight_recorder, jobs.spawn_program)
        write = functools.partial(write_settings, self._root.settings, settings)
        await self._apart(_SETTLE, write, folder=self._root.state)

    def _is_compressing(self, job_id: str) -> bool:
        return self._compressing == job_id

    def may_go(self, row: Ended) -> bool:
        """Whether the record of an ended job is no longer needed here."""
        logs = self._settings().logs
        if self._compressing == row.job_id or self.uploads.busy(row.job_id) or not self._completion.complete(row):
            return False
        return row.uploaded or not logs.upload

    # --- removal ------------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        ended, live = self._registry.ended.rows(), self._registry.live()
        jobs: dict[str, Entry | Ended] = {row.job_id: row for row in ended} | {entry.job_id: entry for entry in live}
        seen = await self._apart("look", functools.partial(_see, self._root.log, jobs, self._collected))
        if seen is None:
            return
        if self._begun is not None and ((left := seen.files.get(self._begun.name)) is None or left.gone):
            await self._tell_removed(self._begun)
        logs, now = self._settings().logs, time.monotonic()
        self._left = {path: up for path, up in self._left.items() if up > now}
        self._plain = [(job, path) for job, path in seen.plain if path not in self._left]
        self._compress_on()
        self._elsewhere.intersection_update(self._left)
        waiting = {path.name for _, path in self._plain} | {path.name for path in self._elsewhere}
        if logs.compress == "off":
            waiting = set()
        for job_id, names in seen.rotated.items():
            if job_id in jobs and (logs.upload or not jobs[job_id].state.final):
                self.uploads.rotated(jobs[job_id], [name for name in names if name not in waiting])
        await self._trim(seen, jobs)
        kept = []
        for files in seen.files.values():
            job = (jobs.get(files.job_id) or seen.collected.get(files.job_id)) if not files.aside else None
            if files.ours if job is None else not files.gone:
                kept.append(self._kept(files, job))
        caps = Caps(logs.keep_days * 86400, logs.min_free_percent, logs.max_node_bytes, bool(logs.upload))
        self._troubles.pop("remove", None)
        doomed = log_keeping_rule.doomed(kept, self._clock(), seen.disk, caps)
        for start in range(0, len(doomed), REMOVE_AT_ONCE):
            some = {each.name: why for each, why in doomed[start : start + REMOVE_AT_ONCE]}
            only = {seen.files[name].job_id for name in some}
            scan = functools.partial(log_ownership.scan, self._root.log, seen.owners, only)
            named = await self._apart("look", scan) or {}
            for name, why in some.items():
                if (going := named.get(name)) is not None:
                    await self._remove(going, jobs.get(going.job_id) if not going.aside else None, why)
        self._begun = None

    async def _trim(self, seen: _Seen, jobs: Collection[str]) -> None:
        """If a program takes segments over, this keeps a running job within its limit instead of its supervisor: it
        removes only segments that were taken."""
        logs = self._settings().logs
        for job_id in seen.rotated if logs.upload and logs.max_job_bytes else ():
            if job_id in jobs and (taken := self.uploads.taken(job_id)):
                trim = functools.partial(_trim, self._root.log, seen.owners[job_id], logs.max_job_bytes, taken)
                await self._apart("keep a job within max_job_bytes", trim)

    def _kept(self, files: Files, job: Entry | Ended | None) -> Kept:
        busy = self._compressing == files.job_id or self.uploads.busy(files.job_id)
        if job is None:  # their job is unknown here; another node may know it if nodes share the folder
            return Kept(files.name, files.changed, files.bytes, busy, orphan=True)
        ended_at = (isinstance(job, Ended) and job.ended_at) or files.changed
        uploaded = isinstance(job, Ended) and job.uploaded
        return Kept(files.name, ended_at, files.bytes, busy or not self._completion.complete(job), uploaded)

    async def _remove(self, files: Files, job: Entry | Ended | None, why: str) -> None:
        note = _Removal(files.name, files.job_id, len(files.paths), files.bytes, why)
        if self._begun is not None and self._begun.name == files.name:
            note = self._begun  # an earlier daemon has removed some of them
        # This blocks a new job with this id and a deletion; changes before that are seen here.
        async with self._registry.alone(files.job_id):
            if self._registry.job(files.job_id) is not job and not files.aside:
                return
            removal = functools.partial(_remove, self._root.removing, note, files, job is not None)
            done = await self._apart("remove", removal, f"{files.job_id}{files.aside}")
        if done:
            await self._tell_removed(note)

    async def _tell_removed(self, note: _Removal) -> None:
        self._events.tell(note.event())
        _log.info("logs.removed", job=note.job, bytes=note.bytes, why=note.why)
        await self._events.stored()
        await self._apart("look", functools.partial(self._root.removing.unlink, missing_ok=True))

    async def _apart(
        self, what: str, function: Callable[[], T], whose: str = "", folder: Path | None = None
    ) -> T | None:
        """In a thread that nobody waits for; None if it failed, which is a warning until the next success. `folder`:
        where it happens, if not among the logs."""
        folder = folder or self._root.log
        try:
            with anyio.fail_after(SLOW_S):
                result = await watched.call(f"{what} {whose} in {folder}", function)
        except TimeoutError:
            text = f"{folder} did not answer within {SLOW_S:g} s"
        except watched.StillHanging as error:
            text = str(error)
        except OSError as error:
            text = f"{error.filename or folder}: {error.strerror or error}"
        else:
            self._troubles.pop(what, None)
            return result
        if self._troubles.get(what) != text:
            _log.warning("logs.trouble", what=what, error=text)
        self._troubles[what] = f"logs: {what}: {text}"
        return None

    # --- compression --------------------------------------------------------------------------------------------------

    def _compress_on(self) -> None:
        """Starts the compressor: there may be a segment to compress."""
        self._some_plain.tell()

    async def _compress(self) -> None:
        """Compresses one segment at a time, until cancelled."""
        while True:
            some = self._some_plain.count
            free = (one for one in self._plain if not self.uploads.busy(one[0]))
            one = next(free, None) if self._settings().logs.compress != "off" else None
            if one is None:
                await self._some_plain.beyond(some)
                continue
            self._plain.remove(one)
            self._compressing, path = one
            self._packing = path, time.monotonic()
            try:
                await self.pack(path)
            finally:
                self._compressing, self._packing = "", None
            # Segments to pass on come first: otherwise they would wait for the last segment of their job.
            self.uploads.wake()
            await checkpoint()

    async def pack(self, path: Path) -> None:
        """Compresses a segment in a process of its own. Never raises."""
        from muster.agent.logs import log_compress  # only now: the daemon starts sooner

        script = Script(sys.executable, ENV, ("-I", "-m", log_compress.__name__, str(path)))
        try:
            ended = await watched.call(f"compress {path}", script.run, on_cancel=script.kill, linger_s=LINGER_S)
        except (OSError, watched.StillHanging) as error:
            code, said = -1, str(error)
        else:
            code, said = ended.returncode, one_line(ended.stderr.decode(errors="replace").strip())[-200:]
        if code == 0:
            self._troubles.pop("compress", None)
            return
        if code == log_compress.BUSY:  # the compressor of an earlier daemon has it
            self._elsewhere.add(path)
            self._left[path] = time.monotonic() + LOOK_S
            return
        self._elsewhere.discard(path)
        self._left[path] = time.monotonic() + AGAIN_S
        self._troubles["compress"] = f"logs: compress: {said or f'{path}: ended with code {code}'}"
        _log.warning("logs.not_compressed", path=str(path), code=code, error=said)


def _owners(jobs: Iterable[Entry | Ended]) -> dict[str, Owner]:
    """By job id, the job that ended last first."""
    ordered = sorted(jobs, key=lambda job: job.ended_at if isinstance(job, Ended) else math.inf, reverse=True)
    return {job.job_id: job if isinstance(job, Ended) else log_ownership.owner(job) for job in ordered}


def _see(folder: Path, jobs: Mapping[str, Entry | Ended], logs: CollectedLogs) -> _Seen:
    """Looks at the log folder. Blocks. Raises OSError."""
    collected = {job_id: row for job_id, row in logs.read().items() if job_id not in jobs}
    owners = _owners([*jobs.values(), *collected.values()])
    found = log_ownership.scan(folder, owners)
    logs.drop([row for row in collected.values() if Files(row.job_id).name not in found])
    room = os.statvfs(folder)
    plain: list[tuple[str, Path]] = []
    rotated: dict[str, list[str]] = {}
    segmented = {files.job_id for files in found.values() if files.rotated and files.job_id in owners}
    for files in log_ownership.scan(folder, owners, segmented).values() if segmented else ():
        for log, layout in log_ownership.layouts(files).items() if files.rotated else ():
            for piece in layout.segments:
                rotated.setdefault(files.job_id, []).append(log_segments.segment_path(log, piece.start, piece.end).name)
                if not piece.packed:
                    plain.append((files.job_id, piece.path))
    disk = Disk(room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize)
    return _Seen(owners, found, disk, plain, rotated, collected)


def _trim(folder: Path, owner: Owner, most: int, among: list[str]) -> None:
    rotation.trim(known_folder(folder), sorted(log_ownership.of_job(folder, owner).logs), most, among)


def _remove(noted: Path, note: _Removal, files: Files, known: bool) -> bool:
    with contextlib.suppress(OSError):  # no space, perhaps, which is why something is removed
        state_file.write(noted, note)
    log_ownership.remove(files, note.why, known)
    return True


def _begun(noted: Path) -> _Removal | None:
    with contextlib.suppress(OSError, state_file.Damaged):
        return state_file.read(noted, _Removal)
    return None
