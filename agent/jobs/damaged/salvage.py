"""Drains the output of a damaged job that no supervisor can drain. So no rank blocks in a write, and the last output of
a rank is not lost with its FIFO."""

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import structlog

from muster.agent import threads
from muster.agent.jobs.damaged import folderless
from muster.agent.jobs.entry import Entry
from muster.probes.kernel.process import Stat
from muster.supervisors.model.job_logs import job_log_files
from muster.supervisors.model.lifecycle import Job, OpenGap, Rank
from muster.supervisors.model.states import JOB, log_owner, service_number
from muster.supervisors.output.gaps import Counts, Gap
from muster.supervisors.output.log_file import Claims
from muster.supervisors.output.log_names import LogName, parsed
from muster.supervisors.output.tee import RankLog
from muster.supervisors.paths import JobPaths, Root, index_of
from muster.supervisors.supervision_errors import AlreadySupervised, explain
from muster.supervisors.system import lock
from muster.supervisors.system.settings_file import SettingsFile

#: Seconds between two checks for a draining supervisor; time limits of one round of a log, and of the last one.
LOOK_S, ROUND_S, LAST_S = 0.5, 0.05, 10.0

_log = structlog.get_logger(__name__)


class Salvage:
    """Drains one damaged job. Meanwhile it holds the job's lock, so no supervisor writes the same files."""

    def __init__(
        self, root: Root, entry: Entry, living: Callable[[], list[Stat] | None], changed: Callable[[], None]
    ) -> None:
        """`living`: its processes; None before the first look. `changed` is called when the lost output has
        changed."""
        self._root, self._entry, self._living, self._changed = root, entry, living, changed
        self._threads = threads.Pool(4, abandon_on_cancel=True)
        self._held: lock.Lock | None = None
        self._logs: dict[int, RankLog] = {}
        self._claims: Claims = {}
        self._counts: Counts | None = None
        #: Held while a thread uses the files: they are closed when no thread does.
        self._working = threading.Lock()
        self._closed = False

    async def run(self) -> None:
        """Drains as soon as no supervisor does. When cancelled, empties the FIFOs and returns."""
        try:
            while not await self._begun():  # noqa: ASYNC110  (nothing tells of a supervisor's end)
                await anyio.sleep(LOOK_S)
            async with anyio.create_task_group() as tasks:
                for number in self._logs:
                    tasks.start_soon(self._drain, number)
        finally:
            # A hanging disk must not block the end of the daemon, nor a supervisor that wants the job.
            with anyio.CancelScope(shield=True), anyio.move_on_after(LAST_S + 1):
                lost = await self._threads.run(self._end)
                entry = self._entry
                entry.lost_now = {}
                entry.job.gaps.clear()
                for number, text in lost.items():
                    entry.note(f"lost {number}", text)
                self._changed()

    async def _drain(self, number: int) -> None:
        log = self._logs[number]
        while True:
            with anyio.move_on_after(1.0):  # in a gap, the file is tried again meanwhile
                await anyio.wait_readable(log.fd)
            await self._threads.run(self._round, number, ROUND_S)
            self._tell(number)

    def _round(self, number: int, seconds: float) -> list[Gap]:
        with self._working:
            if self._closed:
                return []
            return self._logs[number].drain_all(time.monotonic() + seconds)

    # --- begin and end, in threads ------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Opens FIFOs and files. Returns False while a supervisor has them open. Raises OSError."""
        paths, known = self._entry.paths, self._entry.known or Job()
        with self._working:
            if self._closed:
                return True
            return self._open(paths, known)

    def _open(self, paths: JobPaths, known: Job) -> bool:
        """Raises OSError; what could be opened stays open."""
        # By descriptor if the daemon holds one: the FIFO may have no name any more.
        fifos = {number: Path(f"/proc/self/fd/{fd}") for number, fd in self._entry.fifos.items()}
        if self._held is None and self._entry.has_folder:
            try:
                self._held = lock.take(paths.lock, paths.folder)
            except AlreadySupervised:
                return False
        if self._held is not None:
            fifos = _fifos(paths) | fifos
        else:
            living = self._living()
            if living is None:
                return False
            pids = [stat.pid for stat in living]
            if folderless.drains(known.supervisor_pid) or folderless.supervisor(pids):
                return False
            fifos = folderless.fifos(pids) | fifos
        ranks = {rank.rank: rank for rank in known.ranks}
        numbers = sorted(number for number in fifos if number > JOB)
        services = sorted((number for number in fifos if number < JOB), reverse=True)
        count = max(len(ranks), len(numbers))
        more = max([len(known.services), *(service_number(number) + 1 for number in services)])
        if self._counts is None:
            self._counts = _counts(paths, count + more)
        settings = SettingsFile(self._root.settings)
        for slot, number in enumerate([*numbers, JOB, *services]):
            if number in self._logs or number not in fifos:
                continue
            files = self._files(number, ranks.get(number), known)
            where = ranks[number].local_rank if number in ranks else slot
            if number <= JOB:
                where = count if number == JOB else count + 1 + service_number(number)
            found = os.stat(fifos[number])
            owner = found.st_uid, found.st_gid
            limit = lambda: settings.now.logs.max_file_bytes  # noqa: E731
            self._logs[number] = RankLog(
                fifos[number], *files, owner, self._counts, where, limit=limit, claims=self._claims
            )
        if self._logs:
            _log.warning("damaged_job.drained_here", job=self._entry.job_id, ranks=numbers)
        return True

    def _files(self, number: int, rank: Rank | None, known: Job) -> tuple[Path, Path]:
        """Log and index. If the device of a rank is unknown, the name of its log gives it."""
        job_id, root = self._entry.job_id, self._root
        if number == JOB:
            found = None if known.ranks else _newest(root.log, job_id, "job", None)
            node = found.node if found is not None and found.node is not None else known.node_rank
            return job_log_files(root, job_id, node)
        if number < JOB:
            path = root.service_log(job_id, known.node_rank, service_number(number))
            return path, index_of(path)
        found = _newest(root.log, job_id, "output", number) if rank is None else None
        device = number if rank is None else rank.device
        if found is not None and found.device is not None:
            device = found.device
        return root.rank_log(job_id, number, device), root.rank_index(job_id, number, device)

    def _end(self) -> dict[int, str]:
        """Drains what is left, and closes everything. Returns lost output that no log mentions, by rank."""
        lost = {}
        with self._working:
            if not self._logs:  # no process of the job lived at the first look
                with contextlib.suppress(OSError):
                    self._open(self._entry.paths, self._entry.known or Job())
            late = time.monotonic() + LAST_S
            for number, log in self._logs.items():
                log.drain_all(late)
                if (gap := log.abandon()) is not None:
                    lost[number] = f"{_whose(number)}: {gap.bytes} bytes of output were lost: {gap.error}"
                    _log.error("damaged_job.output_lost", job=self._entry.job_id, text=lost[number])
                log.close()
            self._logs.clear()
            if self._counts is not None:
                self._counts.close()
            if self._held is not None:
                self._held.close()
            self._counts, self._held, self._closed = None, None, True
            release(self._entry)
        return lost

    # --- reports ------------------------------------------------------------------------------------------------------

    def _tell(self, number: int) -> None:
        entry, log = self._entry, self._logs.get(number)
        now = log.gap if log is not None else None
        if now is not None and now.bytes:
            entry.job.gaps[number] = OpenGap(now.bytes, now.since, now.error)
            lost = {**entry.lost_now, number: (now.since, now.bytes)}
        else:
            entry.job.gaps.pop(number, None)
            lost = {rank: figures for rank, figures in entry.lost_now.items() if rank != number}
        if lost != entry.lost_now:
            entry.lost_now = lost
            self._changed()

    async def _begun(self) -> bool:
        try:
            done: bool = await self._threads.run(self._begin)
        except OSError as error:
            self._entry.note("output", f"cannot drain its output: {explain(error)}; trying again")
            return False
        self._entry.note("output", "")
        return done


def release(entry: Entry) -> None:
    """Closes the read ends of a damaged job's FIFOs."""
    while entry.fifos:
        os.close(entry.fifos.popitem()[1])


def _fifos(paths: JobPaths) -> dict[int, Path]:
    """FIFOs in the job's folder, by rank or service."""
    found = {JOB: paths.job_fifo} if paths.job_fifo.is_fifo() else {}
    for path in paths.folder.glob("*-*.fifo"):
        if (match := re.fullmatch(r"(rank|service)-(\d+)\.fifo", path.name)) and path.is_fifo():
            number = int(match[2])
            found[number if match[1] == "rank" else service_number(number)] = path
    return found


def _counts(paths: JobPaths, ranks: int) -> Counts:
    """The counts that the supervisor left; all zero if they are for another number of ranks."""
    counts = Counts(paths.lost, paths.ends, ranks + 1, paths.spare_counts, paths.sinks)
    with contextlib.suppress(OSError):
        if paths.lost.stat().st_size == (ranks + 1) * Counts.LOST.size:
            return counts
    for slot in range(ranks + 1):
        count = counts[slot]
        count.lost = count.told = count.number = 0
        count.end, count.since = -1, 0.0
    return counts


def _newest(folder: Path, job_id: str, kind: str, rank: int | None) -> LogName | None:
    """What the name of the newest live log of this kind says; of several nodes, or devices, there may be one each."""
    newest, found = 0.0, None
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name = parsed(entry.name)
            if name is None or (name.job_id, name.kind, name.rank, name.log) != (job_id, kind, rank, entry.name):
                continue
            changed = entry.stat(follow_symlinks=False).st_mtime
            if changed >= newest:
                newest, found = changed, name
    return found


def _whose(number: int) -> str:
    return "the job's own log" if number == JOB else log_owner(number)
