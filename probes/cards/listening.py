"""The one thread that waits for what a driver reports by itself."""

import asyncio
import threading
import time
from collections import deque

import anyio

from muster.probes.cards.accelerator import Backend, CardEvent, DriverError, Trouble

#: In seconds: so long one call waits, which is how long it takes to leave the library; so long a quiet driver reports
#: nothing; and the pause after a driver did not let us wait, and has nothing to wait for.
_WAIT_S, _QUIET_S, _FAILED_S, _NOT_TOLD_S = 2.0, 60.0, 5.0, 60.0
#: muster drops events that were not fetched, oldest first.
_KEPT = 4096


class Listening:
    """For one task that fetches. The first call starts the thread; it ends after `close`."""

    def __init__(self) -> None:
        self._events: deque[CardEvent] = deque(maxlen=_KEPT)
        self._wanted: Backend | None = None
        self._alive = False
        #: When the wait is to be over, by the monotonic clock.
        self._due = 0.0
        #: What the driver said instead of waiting.
        self._refused: Exception | None = None
        self._news = asyncio.Event()

    @property
    def waits(self) -> bool:
        """Whether the thread is in the library."""
        return self._alive

    @property
    def overdue_s(self) -> float:
        """For how many seconds the wait should have been over."""
        return max(0.0, time.monotonic() - self._due) if self._alive else 0.0

    async def next(self, backend: Backend) -> list[CardEvent]:
        """As soon as there is something; empty after a while without."""
        if not self._events:
            news = asyncio.Event()
            self._wanted, self._loop, self._news = backend, asyncio.get_running_loop(), news
            if not self._alive:
                self._start(backend)
            if not self._events and self._refused is None:  # it may have been quick
                with anyio.move_on_after(_QUIET_S):
                    await news.wait()
        found = [self._events.popleft() for _ in range(len(self._events))]
        refused, self._refused = self._refused, None
        if refused is not None and not found:
            untold = isinstance(refused, DriverError) and refused.trouble is Trouble.NOT_TOLD
            await anyio.sleep(_NOT_TOLD_S if untold else _FAILED_S)
        return found

    def leave(self) -> None:
        """Lets the thread go, which leaves the library within _WAIT_S."""
        self._wanted = None
        self._news.set()  # who fetches need not wait any longer

    async def close(self, limit_s: float) -> None:
        """The same, and waits until it has left, at most so many seconds."""
        self.leave()
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        with anyio.move_on_after(limit_s):
            while self._alive:
                await self._news.wait()
                self._news.clear()

    def _start(self, backend: Backend) -> None:
        try:
            thread = threading.Thread(target=self._listen, args=(backend,), name="card events", daemon=True)
            self._alive, self._due = True, time.monotonic() + _WAIT_S
            thread.start()
        except RuntimeError as error:  # none to be had now
            self._alive, self._refused = False, error

    def _listen(self, backend: Backend) -> None:
        try:
            while self._wanted is backend:
                self._due = time.monotonic() + _WAIT_S
                found = backend.wait_events(_WAIT_S)
                if found:
                    self._events.extend(found)
                    self._tell()
        except Exception as error:
            self._refused = error  # the next query of the cards shows the driver's error
        finally:
            self._alive = False
            self._tell()

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:
            pass  # the loop is closed
