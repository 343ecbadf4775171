"""The sampling schedule: quick and slow readings of the cards, processes on the cards, and processes of jobs.

Only the timing runs on the loop. The driver answers within its deadline, and a thread that nothing waits for reads
/proc: one file of a process that is stuck in the kernel can hold a reader forever. From then on muster leaves that
process out, and another thread reads the others.
"""

import itertools
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import field
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from muster.probes.calls import watched
from muster.probes.calls.heartbeat import Beat, tick
from muster.probes.cards.driver import Driver, View, What
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.job_traffic import JobTraffic, Traffic
from muster.probes.kernel.procfs import NodeTotals, Procfs
from muster.probes.kernel.trees import HELPERS, Forest, JobProcess, JobRoots
from muster.probes.settings import Settings, setting

#: Seconds without a file read after which the thread that reads /proc is left behind: one file takes microseconds.
STUCK_S = 10.0
#: How many threads may be left behind; then processes are not looked at until one comes back.
MAX_LEFT_BEHIND = 8
#: Least time in seconds that the cards have for their quick readings. Who needs longer is left out, so that one card
#: does not slow the others down; whether it hangs, the driver's own deadline tells.
READINGS_S = 2.0
#: Seconds between two looks whether telemetry was turned on again.
OFF_S = 5.0
#: No /proc or a strange one, no descriptor, no thread.
_FAILURES = (OSError, ValueError, watched.StillHanging)


def _period(default: float, help: str) -> float:
    return setting(default, help, least=0.05, most=86_400)


@dataclass(frozen=True, slots=True)
class SamplerSettings(Settings):
    """What muster samples, and how often."""

    enabled: bool = setting(
        True, "Whether muster samples cards and processes. Checks and stops query the driver in any case."
    )
    readings_s: float = _period(1.0, "Between two readings of utilization, memory and power of the cards.")
    health_s: float = _period(15.0, "Between two readings of temperatures, clocks, counters and error states.")
    holders_s: float = _period(60.0, "Between two lists of the processes on the cards.")
    processes_s: float = _period(15.0, "Between two looks at the processes of jobs, and between two telemetry records.")
    helpers: tuple[str, ...] = setting(
        HELPERS,
        "Programs whose input and output says nothing about the health of a rank. A name is that of the kernel (15 "
        "characters); `*` at its end matches anything.",
    )


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """What the processes did at one moment: `at` in seconds since the epoch, `up` in seconds of the monotonic clock."""

    at: float
    up: float
    jobs: Mapping[str, tuple[JobProcess, ...]]
    node: NodeTotals
    #: Of the jobs of which it is known, among those that may wait for data.
    traffic: Mapping[str, Traffic] = field(default_factory=dict)


class Sampler:
    """Belongs to one event loop."""

    def __init__(
        self,
        rates: Callable[[], SamplerSettings],
        driver: Driver,
        jobs: Callable[[], Sequence[JobRoots]],
        *,
        idle_percent: Callable[[str], float],
        on_readings: Callable[[View], None],
        on_look: Callable[[ProcessLook], None],
        proc: Path = Path("/proc"),
    ) -> None:
        """`jobs` tells where the processes of jobs begin, `idle_percent` up to which utilization a card of a job is
        idle: it may wait for data, and only then does the hang rule ask what a job receives. The callbacks are called
        on the loop, after the driver's quick readings and after each look at the processes; they raise nothing. Raises
        OSError where `proc` cannot be opened."""
        self._rates = rates
        self._driver = driver
        self._jobs = jobs
        self._idle_percent = idle_percent
        self._on_readings = on_readings
        self._on_look = on_look
        self._proc = proc
        self._stuck: set[int] = set()
        self._reader = self._new_reader()
        self._left_behind: list[_ProcessReader] = []
        #: A sentence for an operator while processes cannot be looked at as they should; else empty.
        self.trouble = ""
        self._looks = Beat("processes", lambda: self._rates().processes_s, self._processes, 0.35)
        self._healths = Beat("health", lambda: self._rates().health_s, self._health, 0.6)
        self.heartbeats = (
            Beat("readings", lambda: self._rates().readings_s, self._readings, 0.0),
            self._looks,
            self._healths,
            Beat("holders", lambda: self._rates().holders_s, self._holders, 0.85),
        )

    def look_soon(self) -> None:
        """Has the processes looked at before it is their turn: some have begun. At most one look in a second is made
        for that; while telemetry is off there is none."""
        self._looks.soon()

    def health_soon(self) -> None:
        """The same of temperatures, clocks and what parts of the cards do."""
        self._healths.soon()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Samples, for ever."""
        task_status.started()
        try:
            while True:
                if self._rates().enabled:
                    async with anyio.create_task_group() as tasks:
                        for beat in self.heartbeats:
                            tasks.start_soon(beat.run, name=f"sampler {beat.name}")
                        await self._turned(False)
                        tasks.cancel_scope.cancel()
                await self._turned(True)
        finally:
            self._left_behind.append(self._reader)
            self._tidy()

    async def _turned(self, on: bool) -> None:
        """Returns when telemetry is turned on, or off."""
        while True:
            if self._rates().enabled is on:
                return
            await tick(OFF_S)

    async def _readings(self) -> None:
        limit = max(READINGS_S, self._rates().readings_s)
        self._on_readings(await self._driver.refresh(What.READINGS, deadline_s=limit))

    async def _health(self) -> None:
        await self._driver.refresh(What.HEALTH)

    async def _holders(self) -> None:
        await self._driver.refresh(What.HOLDERS)

    # --- processes ----------------------------------------------------------------------------------------------------

    async def _processes(self) -> None:
        try:
            look = await self._look() if self._ready() else None
        except _FAILURES as error:
            self.trouble = f"{self._proc}: cannot read processes: {error}"
            return
        if look is not None:
            self.trouble = self._left_out() if self._stuck else ""
            self._on_look(look)

    def _ready(self) -> bool:
        """Makes sure that there is an idle reader; returns whether there is one. Raises OSError."""
        self._tidy()
        if self._reader.busy:  # the look before was cancelled in the middle
            self._leave_behind()
        if len(self._left_behind) >= MAX_LEFT_BEHIND:
            self.trouble = (
                f"{len(self._left_behind)} reads of processes hang in the kernel, at {_pids(self._stuck)}: muster does "
                "not see what processes of jobs do; find what these wait for (`cat /proc/PID/stack`)"
            )
            return False
        if self._rates().helpers != self._reader.helpers:
            before, self._reader = self._reader, self._new_reader()
            self._left_behind.append(before)
        return True

    async def _look(self) -> ProcessLook | None:
        """None where a file of a process cannot be read to its end. Raises OSError, ValueError."""
        reader, jobs = self._reader, tuple(self._jobs())
        view = self._driver.view
        holders = {holder.pid: index for index, seen in view.holders.items() for holder in seen.value}
        waiting = frozenset(roots.job for roots in jobs if self._may_wait_for_data(roots, view))
        look: ProcessLook | None = None
        failure: Exception | None = None
        reader.busy = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_without_progress, reader, tasks.cancel_scope)
            try:
                what = f"reader {reader.number} of processes"
                look = await watched.call(what, lambda: reader.look(jobs, holders, waiting))
            except _FAILURES as error:
                failure, reader.busy = error, False
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if look is None:
            self._leave_behind()
        return look

    def _new_reader(self) -> "_ProcessReader":
        procfs, helpers = Procfs(self._proc), self._rates().helpers
        return _ProcessReader(procfs, Forest(procfs, helpers, self._stuck), JobTraffic(procfs), helpers)

    def _leave_behind(self) -> None:
        """Goes on without a reader that does not return, and without the process at which it hangs. Raises OSError."""
        pid = self._reader.procfs.reading
        if pid:
            self._stuck.add(pid)
            self.trouble = self._left_out()
        before, self._reader = self._reader, self._new_reader()
        before.stuck = pid
        self._left_behind.append(before)

    def _left_out(self) -> str:
        return f"{_pids(self._stuck)}: a read takes longer than {STUCK_S:g} s: no reports of it until it answers"

    def _tidy(self) -> None:
        """Forgets readers that have come back: what they hung at can be read again, or was removed."""
        for reader in [reader for reader in self._left_behind if not reader.busy]:
            reader.procfs.close()
            self._left_behind.remove(reader)
            self._stuck.discard(reader.stuck)
            if reader.stuck and not self._reader.busy:
                self._reader.forest.trust(reader.stuck)

    def _may_wait_for_data(self, job: JobRoots, view: View) -> bool:
        """It has no cards, or one of them is idle or tells nothing."""
        readings = [view.readings.get(index) for index in job.cards]
        idle = self._idle_percent(job.job) if readings else 0.0
        return not readings or any(
            seen is None or seen.value.util is None or seen.value.util <= idle for seen in readings
        )


@dataclass(slots=True, eq=False)
class _ProcessReader:
    """What one thread at a time reads with."""

    procfs: Procfs
    forest: Forest
    traffic: JobTraffic
    helpers: tuple[str, ...]
    number: int = field(default_factory=itertools.count(1).__next__)
    #: A thread is reading with it.
    busy: bool = False
    #: Process at which it hangs, or hung; 0: none.
    stuck: int = 0

    def look(self, jobs: Sequence[JobRoots], holders: Mapping[int, int], waiting: Container[str]) -> ProcessLook:
        """`waiting`: jobs whose traffic is counted. Blocks. Raises OSError, ValueError."""
        try:
            at, up = time.time(), time.monotonic()
            found, node = self.forest.look(jobs, holders), self.procfs.node()
            waiting_now = {job: processes for job, processes in found.items() if job in waiting}
            traffic = self.traffic.look(time.monotonic(), node.net_bytes, waiting_now)
            return ProcessLook(at, up, found, node, traffic)
        finally:
            self.busy = False


async def _cancel_without_progress(reader: _ProcessReader, scope: anyio.CancelScope) -> None:
    before = -1
    while reader.procfs.reads != before:
        before = reader.procfs.reads
        await anyio.sleep(STUCK_S)
    scope.cancel()


def _pids(pids: set[int]) -> str:
    shown = sorted(pids)
    return ", ".join(f"/proc/{pid}" for pid in shown[:5]) + (", ..." if len(shown) > 5 else "")
