"""How the daemon ends, and what happens to its jobs.

The daemon of a node leaves its jobs running, and the next daemon finds them. If no next daemon can find them, it first
stops them with their grace and answers calls meanwhile: as PID 1 of a container, whose end is the end of every process
in it, and with an owner (`muster run --standalone`).
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio.abc import TaskGroup

from muster.agent import threads
from muster.agent.config.schema import Config
from muster.agent.errors import ApiError, JobNotFound
from muster.agent.host import end_signals, log_setup
from muster.agent.host.early_signals import is_init
from muster.agent.host.end_signals import Ask
from muster.probes.calls.heartbeat import tick
from muster.supervisors.system import owner_pipe

if TYPE_CHECKING:
    from muster.agent.jobs.registry import Registry
    from muster.agent.logs.log_keeping import LogKeeping
    from muster.agent.notify.sender import Notifier

#: Seconds over the jobs' grace until the daemon ends although a job has not.
MARGIN_S = 60.0
#: Seconds that it then has to tell of their ends: there is no next daemon that would. (Its owner waits 5 s in silence.)
LAST_WORDS_S = 3.0
#: Seconds that pieces of work have to come to their end once nobody is served any more.
END_S = 10.0
#: Seconds between two looks for a job that is being accepted while the daemon ends, and between two tries of a stop.
_LOOK_S = 0.02
_AGAIN_S = 1.0
#: Seconds between two looks at the sockets; once one is gone; and looks in a row without one until the daemon ends.
SOCKETS_S, GONE_S, SOCKETS_LOOKS = 5.0, 1.0, 2

_log = structlog.get_logger(__name__)


class Ending:
    """Sets `stopping` when the daemon is to end."""

    def __init__(
        self,
        config: Callable[[], Config],
        registry: "Registry",
        notifier: "Notifier",
        keeping: "LogKeeping",
        stopping: anyio.Event,
        owned: bool,
    ) -> None:
        """`owned`: the daemon is that of one `muster run --standalone`, and ends when that command has exited."""
        self._keeping = keeping
        self._config = config
        self._registry = registry
        self._notifier = notifier
        self._stopping = stopping
        self._owned = owned
        self._signals = end_signals.EndSignals()
        #: Why the daemon ends although nobody asked for it; empty: it does not.
        self.failure = ""

    @property
    def stops_jobs(self) -> bool:
        """Whether jobs end with this daemon."""
        setting = self._config().daemon.stop_jobs
        return self._owned or setting == "always" or (setting == "auto" and is_init())

    def signals(self) -> tuple[signal.Signals, ...]:
        """Those that are handled. A daemon with an owner was started by a command, and ignores the signals that the
        command ignores (nohup; a shell, of what it starts in the background)."""
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        return tuple(n for n in numbers if not self._owned or signal.getsignal(n) is not signal.SIG_IGN)

    def is_meant(self, number: signal.Signals) -> bool:
        """Whether a signal asks for the end: SIGHUP does so where a terminal was closed, not in a service."""
        return number != signal.SIGHUP or self._owned

    def take(self, number: signal.Signals, tasks: TaskGroup) -> None:
        """Does what a signal asks for, in a task of `tasks`."""
        ask = self._signals.take(number, anyio.current_time())
        _log.info("ending", signal=number.name, asks=ask.name.lower() if ask is not None else "nothing new")
        if ask is Ask.LEAVE or not self.stops_jobs:
            self._stopping.set()
        elif ask is not None:
            # Slurm may signal every process of the job, and this one may be the first to stop it.
            late = end_signals.time_limit(os.environ, time.time()) if self._owned and number == signal.SIGTERM else ""
            tasks.start_soon(self._end_jobs, ask, end_signals.name(number) + late)

    def hurry(self) -> None:
        """Ends the process after END_S, although threads wait for a disk: whatever they are in the middle of survives
        that as it survives a `kill -9`."""
        asyncio.get_running_loop().call_later(END_S, self._leave)

    def _leave(self) -> None:
        _log.warning("ended_waiting", text=f"threads have waited for a disk for {END_S:g} s: musterd ends without them")
        log_setup.own_log(log_setup.STDERR).settle(log_setup.END_S)
        os._exit(1 if self.failure else 0)

    async def end_with_owner(self, fd: int) -> None:
        """Ends jobs and daemon once no process holds the other end of the pipe `fd`."""
        while True:
            await anyio.wait_readable(fd)
            if not os.read(fd, 4096):
                break
        _log.info("owner.gone")
        await self._end_jobs(Ask.STOP, owner_pipe.GONE)
        self._stopping.set()

    async def end_without(self, sockets: Iterable[Path]) -> None:
        """Ends the daemon once one of these files was removed, which it listens on: gRPC cannot bind the path again, no
        client can connect, and the next daemon can serve. Where the jobs would end with it, it goes on without."""
        pool = threads.Pool(1, abandon_on_cancel=True)
        bound = {path: found for path in sockets if (found := await pool.run(_status, path)) is not None}
        looks = 0
        while looks < SOCKETS_LOOKS:
            await tick(GONE_S if looks else SOCKETS_S)
            gone = await pool.run(_replaced, bound)
            looks = looks + 1 if gone is not None else 0
        what = f"{gone}: was removed while musterd listened on it, and clients can no longer connect"
        if self.stops_jobs:
            _log.error(
                "sockets.gone", socket=str(gone), text=f"{what}; musterd keeps running, because jobs would end with it"
            )
            return
        self.failure = f"{what}: musterd exits, and jobs continue: start it again unless its service does"
        _log.error("sockets.gone", socket=str(gone), text=self.failure)
        self._stopping.set()

    async def _end_jobs(self, ask: Ask, reason: str) -> None:
        """Returns when all have ended, or cannot be ended. Without an owner that is the daemon's end, too: an owner
        still wants to know how they ended, and leaves then."""
        self._registry.close()
        await self._stop_all((0.0,) if ask is Ask.KILL else None, reason)
        with anyio.move_on_after(LAST_WORDS_S):
            await self._notifier.told()
            await self._keeping.finish()
        if not self._owned:
            self._stopping.set()

    async def _stop_all(self, steps: tuple[float, ...] | None, reason: str) -> None:
        registry = self._registry
        jobs = registry.live()
        grace = max((sum(entry.spec.stop_steps(steps)) for entry in jobs), default=0.0)
        with anyio.move_on_after(grace + MARGIN_S) as waiting:
            # A start that was accepted in the same moment adds one.
            while jobs or registry.starting:
                async with anyio.create_task_group() as tasks:
                    for entry in jobs:
                        tasks.start_soon(self._stop, entry.job_id, steps, reason)
                if not jobs:
                    await anyio.sleep(_LOOK_S)
                jobs = registry.live()
        if waiting.cancelled_caught:
            left = [entry.job_id for entry in registry.live()]
            _log.error("jobs.not_ended", jobs=left, seconds=grace + MARGIN_S)

    async def _stop(self, job_id: str, steps: tuple[float, ...] | None, reason: str) -> None:
        while True:
            try:
                await self._registry.stop(job_id, steps, "musterd", reason)
                await self._registry.wait_ended(job_id)
                return
            except JobNotFound:  # somebody has removed it
                return
            except ApiError as error:
                _log.warning("job.not_stopped", job=job_id, error=str(error))
                await anyio.sleep(_AGAIN_S)


def _status(path: Path) -> os.stat_result | None:
    """None where there is no such file."""
    try:
        return os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _replaced(files: dict[Path, os.stat_result]) -> Path | None:
    """The first of the files that is not there any more, or another one in its place. What cannot be looked at is
    believed to be there."""
    for path, before in files.items():
        try:
            found = _status(path)
        except OSError:
            continue
        if found is None or not os.path.samestat(found, before):
            return path
    return None
