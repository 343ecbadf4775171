"""The daemon climbs the signal ladder (supervisors/system/ladder.py) of one job, in threads: reading a process that
hangs in the kernel may hang as well, and must delay nothing else."""

import contextlib
import signal
from collections.abc import Awaitable, Callable

import anyio
import structlog

from muster.agent import threads
from muster.probes.kernel import process
from muster.probes.kernel.process import Stat
from muster.supervisors.job.stop_order import StopOrder
from muster.supervisors.launch.containment import Containment
from muster.supervisors.supervision_errors import explain
from muster.supervisors.system.ladder import Ladder, Rung
from muster.supervisors.system.spare import Reserve
from muster.supervisors.system.urgency import urgent

#: Seconds between two looks at a job that is being stopped, and the longest pause between two SIGKILLs.
LOOK_S, KILL_AGAIN_MOST_S = 0.5, 0.25
#: Looks in a row that must find no process: one look can miss a process that forks and exits.
EMPTY_LOOKS = 3
#: Seconds that the ladder waits for a thread. Then it runs on the loop, because ending processes may free threads.
NO_THREAD_S = 1.0
#: Descriptors that looks and signals have in reserve.
RESERVE = 12

_log = structlog.get_logger(__name__)


class Climber:
    """Carries out the stops of one job."""

    def __init__(self, job_id: str, reserve: Reserve, say: Callable[[str], None]) -> None:
        """`reserve`: descriptors for looks and signals; all jobs share it. `say` receives a sentence about the present
        work."""
        self._job_id, self._reserve, self._say = job_id, reserve, say
        # Abandoned when the daemon exits: a process that hangs in the kernel must not delay the exit.
        self._threads = threads.Pool(2, abandon_on_cancel=True, here_after=NO_THREAD_S)

    async def climb(
        self,
        contained: Containment,
        order: StopOrder,
        *,
        terminated: bool,
        over: Callable[[], bool],
        keep: Callable[[], Awaitable[None]],
        between: Callable[[], Awaitable[None]],
        doing: str,
    ) -> list[Stat]:
        """Climbs until no process of the job is left, or none of the rest can be ended; returns the remaining
        processes. `order` may be shortened meanwhile.

        `over`: whether a supervisor continues the stop. `keep` is awaited before the first signal of each kind, to
        record who sent it; `between` during the grace period. `doing`: a sentence for `say`.
        """
        ladder = Ladder(order.up, sum(order.steps), terminated=terminated, pause_most=KILL_AGAIN_MOST_S)
        empty, left = 0, list[Stat]()
        await keep()
        while empty < EMPTY_LOOKS and not over():
            ladder.shorten(order.up, sum(order.steps))
            rung = ladder.due(process.uptime())
            name = {Rung.TERMINATE: "SIGTERM", Rung.KILL: "SIGKILL"}.get(rung)
            if name is not None and name not in order.sent:
                order.sent = (*order.sent, name)
                await keep()
            try:
                if rung is Rung.TERMINATE:
                    await self.signal(contained, signal.SIGTERM)
                if rung is Rung.KILL:
                    left = await self.kill(contained, urgently=ladder.is_urgent(process.uptime()))
                else:
                    left = await self.look(contained)
            except OSError as error:  # the look failed, so no process is known to have exited
                self._say(f"cannot look at its processes: {explain(error)}; trying again")
                await anyio.sleep(LOOK_S)
                continue
            ladder.done(rung, process.uptime())
            empty = 0 if left else empty + 1
            if rung is Rung.GIVE_UP:
                break
            self._say(doing)
            if rung is not Rung.KILL:
                await between()
            await anyio.sleep(max(0.0, min(ladder.next_at() - process.uptime(), LOOK_S)))
        return left if empty < EMPTY_LOOKS else []

    async def signal(self, contained: Containment, number: int) -> None:
        """Sends a signal once to every process. Raises OSError."""
        sent = await self._threads.run(self._reserve.call, contained.signal, number)
        _log.warning("last_resort.signal", job=self._job_id, signal=signal.Signals(number).name, processes=sent)

    async def kill(self, contained: Containment, *, urgently: bool) -> list[Stat]:
        """Sends SIGKILL to every process; returns those that were alive before. Raises OSError."""

        def work() -> list[Stat]:
            with urgent() if urgently else contextlib.nullcontext():
                return contained.kill()

        found = await self._threads.run(self._reserve.call, work)
        if found:
            _log.warning("last_resort.signal", job=self._job_id, signal="SIGKILL", processes=len(found))
        return found

    async def look(self, contained: Containment) -> list[Stat]:
        """The living processes. Raises OSError."""
        return await self._threads.run(self._reserve.call, contained.members)
