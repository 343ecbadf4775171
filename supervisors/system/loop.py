"""A small event loop: file descriptors, timers, SIGCHLD. Supervisors and nursery run on it."""

import heapq
import itertools
import os
import select
import signal
import time
from collections.abc import Callable

Callback = Callable[[], None]

#: What the disk or the node refused is tried again this often, in seconds.
AGAIN_S = 1.0


class Timer:
    """Work that is done once, unless cancelled."""

    __slots__ = ("_work",)

    def __init__(self, work: Callback) -> None:
        self._work: Callback | None = work

    def cancel(self) -> None:
        """Also of work that was refused and is to be tried again."""
        self._work = None

    @property
    def is_due(self) -> bool:
        """Whether its work is still to be done."""
        return self._work is not None

    def fire(self) -> None:
        """Raises what the work raises; it is not done then."""
        work = self._work
        if work is not None:
            work()
            if self._work is work:
                self._work = None


def _nothing() -> None:
    """Nobody asked; or it is enough that the loop turns."""


class Alarm:
    """At most one timer at a time: what is set replaces what was."""

    def __init__(self, loop: "Loop") -> None:
        self._loop = loop
        self._timer: Timer | None = None

    def set(self, seconds: float, work: Callback = _nothing) -> None:
        """Attempts the work once the seconds are over; at once where they are not above 0."""
        self.cancel()
        self._timer = self._loop.later(max(0.0, seconds), work)

    @property
    def is_set(self) -> bool:
        """Whether something is still to be done."""
        return self._timer is not None and self._timer.is_due

    def cancel(self) -> None:
        """The work will not be done."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Loop:
    """Level-triggered epoll. `after` runs once behind every batch of callbacks: decisions are taken there, when
    everything that had happened by then was seen."""

    def __init__(self, on_trouble: Callable[[OSError], None]) -> None:
        """`on_trouble` gets an OSError that a timer's work raised."""
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._first: list[Callback] = []
        self._behind: list[Callback] = []
        self._resting: dict[int, Timer] = {}
        #: Called behind SIGCHLD, and behind every batch of callbacks.
        self.on_child: Callback = _nothing
        self.after: Callback = _nothing
        self._on_trouble = on_trouble
        self._running = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.add(self._wake_read, self._on_signal)

    def add(self, fd: int, callback: Callback, events: int = select.EPOLLIN) -> None:
        """Calls `callback` at each of the `events` (of epoll)."""
        self._epoll.register(fd, events)
        self._callbacks[fd] = callback

    def want(self, fd: int, events: int) -> None:
        """Changes what is waited for."""
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Forgets a descriptor; ignores an unknown one."""
        resting = self._resting.pop(fd, None)
        if resting is not None:
            resting.cancel()
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def rest(self, fd: int, seconds: float) -> None:
        """Leaves a descriptor alone for a while: a listening socket whose accept(2) finds no free descriptor stays
        readable, and would keep us busy."""
        callback = self._callbacks.get(fd)
        if callback is not None:
            self.remove(fd)
            self._resting[fd] = self.later(seconds, lambda: self._wake(fd, callback))

    def _wake(self, fd: int, callback: Callback) -> None:
        self._resting.pop(fd, None)
        self.add(fd, callback)

    def once(self, callback: Callback) -> None:
        """Calls it as soon as the loop runs; whatever it raises ends the loop."""
        self._first.append(callback)

    def behind(self, callback: Callback) -> None:
        """Calls it once behind the present batch of callbacks, before `after`: for work that takes several of them
        together. Whatever it raises ends the loop."""
        self._behind.append(callback)

    def attempt(self, callback: Callback) -> None:
        """Calls it now; should the disk or the node refuse its work (OSError), again and again until it is done."""
        self._fire(Timer(callback))

    def later(self, seconds: float, callback: Callback) -> Timer:
        """Attempts it once the seconds are over."""
        timer = Timer(callback)
        self._push(timer, seconds)
        return timer

    def _fire(self, timer: Timer) -> None:
        try:
            timer.fire()
        except OSError as error:
            self._on_trouble(error)
            self._push(timer, AGAIN_S)

    def _push(self, timer: Timer, seconds: float) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))

    def stop(self) -> None:
        """Ends `run` after this round."""
        self._running = False

    def run(self) -> None:
        """Until `stop`."""
        self._running = True
        if self._first:
            while self._first:
                self._first.pop(0)()
            self.after()  # what they found may be all that there is to decide on
        while self._running:
            for fd, _ in self._epoll.poll(self._wait()):
                callback = self._callbacks.get(fd)
                if callback is not None:
                    callback()
            while self._behind:
                self._behind.pop(0)()
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                self._fire(heapq.heappop(self._timers)[2])
            self.after()

    def _wait(self) -> float:
        if not self._timers:
            return -1
        # epoll takes milliseconds in an int: a timer weeks away is looked at again each hour.
        return min(3600.0, max(0.0, self._timers[0][0] - time.monotonic()))

    def _on_signal(self) -> None:
        os.read(self._wake_read, 4096)
        self.on_child()
