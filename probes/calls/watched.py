"""Calls that may hang for ever (a dead NFS server, a resolver, a sick driver), each in a thread that nothing waits for.

anyio's worker threads do not serve here: an abandoned one keeps its place in the limiter that the rest of the daemon
shares, and being no daemon thread it would keep the process from ending. A thread of this module can do neither. One
whose call has returned serves the next: to start a thread costs more than most of the calls.
"""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import field
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import anyio

from muster.probes.kernel.dataclass import dataclass

T = TypeVar("T")

#: How many threads without a call are kept, and for how many seconds: the daemon's periods are up to 15 s.
RESTING, REST_S = 2, 20.0


class StillHanging(Exception):
    """Raised when an earlier call for the same thing was given up and has not come back: one thread is enough."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what}: an earlier call still hangs after {seconds:.0f} s")


_lock = threading.Lock()
#: What was abandoned and has not come back, with the moment (monotonic) at which it was called.
_stuck: dict[str, float] = {}


@dataclass(slots=True)
class _WatchedCall(Generic[T]):
    what: str
    function: Callable[[], T]
    loop: asyncio.AbstractEventLoop
    began: float = field(default_factory=time.monotonic)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    values: list[T] = field(default_factory=list)
    error: BaseException | None = None
    ended: bool = False

    def run(self) -> None:
        try:
            self.values.append(self.function())
        except BaseException as error:  # whatever it is, it belongs to the caller
            self.error = error
        with _lock:
            self.ended = True
            if _stuck.get(self.what) == self.began:
                del _stuck[self.what]
        try:
            self.loop.call_soon_threadsafe(self.done.set)
        except RuntimeError:
            pass  # the loop is closed: the caller has exited

    def abandon(self) -> None:
        with _lock:
            if not self.ended:
                _stuck[self.what] = self.began

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self.values[0]


class _Thread:
    """Makes one call after another."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_WatchedCall[Any]] = SimpleQueue()

    @classmethod
    def make(cls, call: _WatchedCall[Any]) -> None:
        """Begins the call. Raises RuntimeError where no thread can be had."""
        with _lock:
            thread = _resting.pop() if _resting else None
        if thread is None:
            thread = cls()
            threading.Thread(target=thread._work, name=_name(call), daemon=True).start()
        thread._calls.put(call)

    def _work(self) -> None:
        nice = os.getpriority(os.PRIO_PROCESS, 0)  # of this thread
        while (call := self._next()) is not None:
            threading.current_thread().name = _name(call)
            call.run()
            del call  # and with it what it holds
            threading.current_thread().name = "probe"
            if os.getpriority(os.PRIO_PROCESS, 0) != nice:  # the call changed it, and may not change it back
                return
            with _lock:
                if len(_resting) >= RESTING:
                    return
                _resting.append(self)

    def _next(self) -> _WatchedCall[Any] | None:
        """None: nobody wants anything any more."""
        try:
            return self._calls.get(timeout=REST_S)
        except Empty:
            with _lock:
                if self in _resting:
                    _resting.remove(self)
                    return None
            return self._calls.get()  # on its way, since just now


#: Those without a call, the last of which is the next to get one; `_lock` guards it.
_resting: list[_Thread] = []


def _name(call: _WatchedCall[Any]) -> str:
    return f"probe {call.what}"


async def call(
    what: str, function: Callable[[], T], *, on_cancel: Callable[[], None] | None = None, linger_s: float = 0.0
) -> T:
    """The result of `function()`, run in a thread that does nothing else meanwhile.

    When the caller is cancelled (a deadline), `on_cancel` is called to make the function return early, the call waits
    for that at most `linger_s` seconds, and else leaves the thread behind. `what` names the thing that may hang. Raises
    what the function raises, StillHanging when an earlier call with the same `what` was left behind and has not
    returned, and OSError (EAGAIN) where no thread can be had.
    """
    with _lock:
        since = _stuck.get(what)
    if since is not None:
        raise StillHanging(what, time.monotonic() - since)
    job = _WatchedCall(what, function, asyncio.get_running_loop())
    try:
        _Thread.make(job)
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"no thread can be started: {error}") from None
    try:
        await job.done.wait()
    except anyio.get_cancelled_exc_class():
        if on_cancel is not None:
            on_cancel()
            with anyio.move_on_after(linger_s, shield=True):
                await job.done.wait()
        job.abandon()
        raise
    return job.result()
