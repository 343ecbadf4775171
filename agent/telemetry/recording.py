"""Makes telemetry records of looks at jobs, and writes them to the file that the operator configured."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio

from muster.agent.changes import Changes
from muster.agent.host import log_folder
from muster.agent.jobs.entry import Entry
from muster.agent.telemetry import job_processes
from muster.agent.telemetry.records import CardRecord, ProcRecord, RecordFile, Records, TelemetryRecord
from muster.probes.calls import watched
from muster.probes.calls.heartbeat import tick
from muster.probes.cards.accelerator import SLOT
from muster.probes.cards.driver import View
from muster.probes.cards.sampler import ProcessLook
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.job_traffic import Traffic
from muster.probes.kernel.trees import JobProcess, ProcessRole
from muster.supervisors.model.card_identity import numbers_now
from muster.supervisors.output.log_layout import Folder
from muster.supervisors.output.log_reader import Reader
from muster.supervisors.paths import Root

#: Seconds that reading the sizes of logs may take.
LOGS_S = 5.0
#: Seconds between two checks for another configured file.
NOTICE_S = 5.0
#: Bytes of a log of which lines are counted in one look: enough to see whether lines come steadily.
_COUNTED_BYTES = 65536


@dataclass(frozen=True, slots=True)
class LogCount:
    """Output of a rank so far in bytes, and the lines that were counted since the first look."""

    size: int
    lines: int = 0


class LogCounts:
    """Counts the output in logs of a folder, look by look. For one thread at a time."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._seen: dict[Path, LogCount] = {}

    def look(self, logs: Sequence[Path]) -> Mapping[Path, LogCount]:
        """Of the existing logs; the others are forgotten. Of what came since the look before, lines of the last
        64 KiB count; a log that cannot be read has those that it had. Raises OSError where the folder cannot be."""
        found: dict[Path, LogCount] = {}
        layouts = self._folder.look(logs)
        with Reader(self._folder) as reader:
            for log, layout in zip(logs, layouts, strict=True):
                if layout.pieces or layout.end:
                    found[log] = self._count(reader, log, layout.end)
        self._seen = found
        return found

    def _count(self, reader: Reader, log: Path, end: int) -> LogCount:
        before = self._seen.get(log)
        if before is None:
            return LogCount(end)
        try:
            _, data = reader.stretch(log, max(before.size, end - _COUNTED_BYTES), end)
        except OSError:  # the file was removed, or is damaged
            data = b""
        return LogCount(end, before.lines + data.count(b"\n"))


class Recording:
    """Belongs to one event loop. A new look replaces the previous one if that is still waiting."""

    def __init__(
        self,
        root: Root,
        records: Records,
        path: Callable[[], str],
        view: Callable[[], View],
        on_logs: Callable[[float, Mapping[str, Mapping[int, float]]], None] = lambda at, rates: None,
    ) -> None:
        """`path` returns the present file, "" for none; `view` returns the present view of the cards; `on_logs` gets
        the bytes per second that each rank of each job has logged since the look before, and the time."""
        self._root = root
        self._records = records
        self._path = path
        self._view = view
        self._file = RecordFile(records)
        self._counts = LogCounts(log_folder.folder(root.log))
        self._on_logs = on_logs
        #: Of the look before: its time (CLOCK_MONOTONIC), and the sizes of the logs.
        self._logged: tuple[float, Mapping[str, dict[str, LogCount]]] = (0.0, {})
        #: Of the record before, by job.
        self._traffic: Mapping[str, Traffic] = {}
        self._next: tuple[ProcessLook, Mapping[str, Entry]] | None = None
        self._came = Changes()

    @property
    def trouble(self) -> str:
        """A sentence for an operator while records are lost, or empty."""
        return self._file.trouble

    def take(self, look: ProcessLook, entries: Mapping[str, Entry]) -> None:
        """Makes records of this look at these jobs, if there is a subscriber."""
        if self._records.wanted:
            self._next = look, entries
            self._came.tell()

    async def run(self) -> None:
        """For ever."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._make)
            while True:
                await self._follow_file()

    async def _make(self) -> None:
        seen = 0
        while True:
            seen = await self._came.beyond(seen)
            if self._next is not None:
                look, entries = self._next
                self._next = None
                logs = await self._count_logs(entries)
                self._tell_rates(time.monotonic(), logs)
                before, self._traffic = self._traffic, look.traffic
                for job in look.jobs:
                    moves = _rates(look.traffic.get(job), before.get(job))
                    self._records.publish(_record(look, entries[job], self._view(), logs.get(job, {}), moves))

    def _tell_rates(self, up: float, logs: Mapping[str, dict[str, LogCount]]) -> None:
        (before, earlier), self._logged = self._logged, (up, logs)
        if up <= before:
            return
        rates = {
            job: {
                int(rank): max(0, log.size - earlier[job][rank].size) / (up - before)
                for rank, log in of_job.items()
                if rank in earlier[job]
            }
            for job, of_job in logs.items()
            if job in earlier
        }
        if rates:
            self._on_logs(time.time(), rates)

    async def _follow_file(self) -> None:
        """Until another file is named."""
        path = self._path()
        async with anyio.create_task_group() as tasks:
            if path:
                tasks.start_soon(self._file.follow, path)
            else:
                self._file.trouble = ""
            while True:
                await tick(NOTICE_S)
                if self._path() != path:
                    tasks.cancel_scope.cancel()
                    break

    async def _count_logs(self, entries: Mapping[str, Entry]) -> Mapping[str, dict[str, LogCount]]:
        """Log counts by job and rank; empty if the disk with the logs does not answer."""
        wanted = [
            (job, str(rank.rank), self._root.rank_log(job, rank.rank, rank.device))
            for job, entry in entries.items()
            for rank in entry.job.ranks
        ]

        def counts() -> dict[str, dict[str, LogCount]]:
            found: dict[str, dict[str, LogCount]] = {}
            seen = self._counts.look([path for _, _, path in wanted])
            for job, rank, path in wanted:
                if path in seen:
                    found.setdefault(job, {})[rank] = seen[path]
            return found

        try:
            with anyio.move_on_after(LOGS_S):
                return await watched.call(f"sizes of the logs in {self._root.log}", counts)
        except (OSError, watched.StillHanging):
            pass
        return {}


def _rates(now: Traffic | None, before: Traffic | None) -> tuple[float, float] | None:
    return None if now is None or before is None else now.rates(before)


def _record(
    look: ProcessLook, entry: Entry, view: View, logs: Mapping[str, LogCount], moves: tuple[float, float] | None
) -> TelemetryRecord:
    # A command that a person runs in a job is not a sign of life.
    procs = tuple(_proc(proc) for proc in look.jobs[entry.job_id] if proc.role != ProcessRole.SESSION)
    driver = str(view.driver.trouble) if view.driver is not None and entry.job.cards else None
    nodes = max(entry.job.node_count, job_processes.nodes_told(look.jobs[entry.job_id], len(entry.job.cards)))
    sizes = {rank: log.size for rank, log in logs.items()}
    lines = {rank: log.lines for rank, log in logs.items()}
    cards, net = _cards(entry, view), look.node.net_bytes
    most, least = moves or (None, None)
    return TelemetryRecord(
        *(look.at, entry.job_id, procs, cards, sizes, net, driver, nodes),
        log_lines=lines,
        job_net_rate=most,
        job_net_least=least,
    )


def _proc(proc: JobProcess) -> ProcRecord:
    stat, io = proc.stat, proc.io
    return ProcRecord(
        pid=stat.pid,
        start=stat.start,
        rank=proc.rank,
        role=proc.role,
        cpu_s=round(stat.cpu_s, 3),
        rchar=io.rchar if io else None,
        wchar=io.wchar if io else None,
        read_bytes=io.read_bytes if io else None,
        write_bytes=io.write_bytes if io else None,
        # The kernel calls it a zombie once its first thread has ended, while the others go on.
        state="S" if stat.state == "Z" and not stat.ended else stat.state,
        wchan=proc.wchan,
    )


def _cards(entry: Entry, view: View) -> tuple[CardRecord, ...]:
    found = []
    now = numbers_now(entry.job, entry.job.cards, view.uuids)
    for place, own in enumerate(entry.job.cards):
        index = now.get(own)
        card = view.cards.get(index) if index is not None else None
        if index is None or card is None or card.kind == SLOT:
            continue
        reading, health = view.readings.get(index), view.health.get(index)
        found.append(
            CardRecord(
                index=own,  # the job's number of it, by which the hang rule remembers it
                kind=card.kind,
                util=reading.value.util if reading else None,
                mem_util=reading.value.mem_util if reading else None,
                power_w=reading.value.power_w if reading else None,
                power_limit_w=health.value.power_limit_w if health else None,
                fabric_bytes=health.value.fabric_bytes if health else None,
                rank=job_processes.rank_of_card(entry, place),
                trouble=str(view.sick[index].trouble) if index in view.sick else None,
            )
        )
    return tuple(found)
