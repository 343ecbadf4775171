"""Work on jobs that must not be interrupted, nor overlap with other work on the same job."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import structlog
from anyio.abc import TaskGroup

from muster.agent.errors import ShuttingDown

T = TypeVar("T")

#: Seconds between two looks whether a piece of work is hopeless.
LOOK_S = 2.0

_log = structlog.get_logger(__name__)


class JobWork:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._group: TaskGroup | None = None
        #: By job: its lock, and how many wait for it or hold it.
        self._busy: dict[str, tuple[anyio.Lock, int]] = {}

    def start(self, group: TaskGroup) -> None:
        """Opens `finish` for work, which runs in this group."""
        self._group = group

    async def finish(
        self, work: Callable[[], Awaitable[T]], hopeless: Callable[[], Exception | None] = lambda: None
    ) -> T:
        """Runs `work` to its end, even if the caller is cancelled. Returns and raises what `work` does; raises
        ShuttingDown before `start`, and what `hopeless` says meanwhile: then the caller does not wait any longer.

        The work is a task of its own: gRPC cancels handlers in a way that no shield in their own task stops.
        """
        if self._group is None:
            raise ShuttingDown
        done = anyio.Event()
        result: list[T] = []
        errors: list[Exception] = []
        left = False

        async def run() -> None:
            with anyio.CancelScope(shield=True):
                try:
                    result.append(await work())
                except Exception as error:  # the caller raises it, whatever it is
                    if left:
                        _log.warning("job.work_failed_late", error=str(error))
                    errors.append(error)
                finally:
                    done.set()

        self._group.start_soon(run)
        while not done.is_set():
            with anyio.move_on_after(LOOK_S):
                await done.wait()
            if not done.is_set() and (error := hopeless()) is not None:
                left = True
                raise error
        if errors:
            raise errors[0]
        return result[0]

    def is_busy(self, job_id: str) -> bool:
        """Whether somebody holds `alone` of this job, or waits for it."""
        return job_id in self._busy

    @asynccontextmanager
    async def alone(self, job_id: str) -> AsyncIterator[None]:
        """One start, removal, or removal of log files of a job at a time."""
        lock, users = self._busy.get(job_id, (anyio.Lock(), 0))
        self._busy[job_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            _, users = self._busy.pop(job_id)
            if users > 1:
                self._busy[job_id] = (lock, users - 1)
