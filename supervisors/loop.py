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
    """Runs once, unless cancelled."""

    __slots__ = ("_callback", "due")

    def __init__(self, due: float, callback: Callback) -> None:
        self.due = due
        self._callback: Callback | None = callback

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


def _nothing() -> None:
    """Nobody asked."""


class Loop:
    """Level-triggered epoll. `after` runs once behind every batch of callbacks: decisions are taken there, when
    everything that had happened by then was seen."""

    def __init__(self, on_trouble: Callable[[OSError], None]) -> None:
        """`on_trouble` is told of an OSError that a timer's work ran into."""
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
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
        self._epoll.register(fd, events)
        self._callbacks[fd] = callback

    def want(self, fd: int, events: int) -> None:
        """Changes what is waited for."""
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Forgets a descriptor; one that is not known is passed over."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def rest(self, fd: int, seconds: float) -> None:
        """Leaves a descriptor alone for a while: a listening socket whose accept(2) finds no free descriptor stays
        readable, and would keep us busy."""
        callback = self._callbacks.get(fd)
        if callback is not None:
            self.remove(fd)
            self.later(seconds, lambda: self.add(fd, callback))

    def once(self, callback: Callback) -> None:
        """Calls it as soon as the loop runs; whatever it raises ends the loop."""
        heapq.heappush(self._timers, (0.0, next(self._order), Timer(0.0, callback)))

    def attempt(self, callback: Callback) -> None:
        """Calls it now; should the disk or the node refuse its work (OSError), again and again until it is done."""
        try:
            callback()
        except OSError as error:
            self._on_trouble(error)
            self.later(AGAIN_S, callback)

    def later(self, seconds: float, callback: Callback) -> Timer:
        """Attempts it once the seconds are over."""
        timer = Timer(time.monotonic() + seconds, lambda: self.attempt(callback))
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        """Until `stop`."""
        self._running = True
        while self._running:
            for fd, _ in self._epoll.poll(self._wait()):
                callback = self._callbacks.get(fd)
                if callback is not None:
                    callback()
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2].fire()
            self.after()

    def _wait(self) -> float:
        if not self._timers:
            return -1
        # epoll takes milliseconds in an int: a timer weeks away is looked at again each hour.
        return min(3600.0, max(0.0, self._timers[0][0] - time.monotonic()))

    def _on_signal(self) -> None:
        os.read(self._wake_read, 4096)
        self.on_child()
