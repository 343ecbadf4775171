"""Moves the output of several ranks at once: while there is much of it, with the help of a second thread.

The second thread knows descriptors and numbers only: within a call of `Splicer.run` it takes splices from the same list
as the caller, and behind the call it does nothing. So all that belongs to a log (gaps, index, rotation, counts) stays
with one thread. Where no core is free for the second thread, the caller does it all.

A process with a second thread must not fork: before each os.fork() the thread is ended. It comes back with the next
flood.
"""

import os
import threading
import time
from collections import deque
from weakref import WeakSet

from muster.probes.kernel.dataclass import dataclass

#: Bytes in one splice that are much, and so many lists in a row with two of those or more are a flood.
MUCH = 1 << 15
FLOOD = 4
#: Seconds without a flood after which the thread is ended, or after which it is tried again to start one.
REST_S = 1.0


@dataclass(slots=True)
class Splice:
    """Moves what a FIFO holds, at most `count` bytes, to a place in a file. `start`: where it begins in all output of
    the rank. `due`: its time is to be recorded."""

    source: int
    target: int
    position: int
    count: int
    start: int
    due: bool
    moved: int = 0
    error: OSError | None = None

    def run(self) -> None:
        """Never raises OSError, and never waits for output."""
        try:
            self.moved = os.splice(
                self.source, self.target, self.count, offset_dst=self.position, flags=os.SPLICE_F_NONBLOCK
            )
        except OSError as error:
            self.error = error


class Splicer:
    """Carries out splices of different files."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._waiting: deque[Splice] = deque()
        #: Whether the second thread has one in its hands; whether it is to end.
        self._helping = self._over = False
        self._thread: threading.Thread | None = None
        self._floods, self._flooded_at, self._start_at = 0, 0.0, 0.0
        _splicers.add(self)

    @property
    def helped(self) -> bool:
        """Whether there is a second thread."""
        return self._thread is not None

    def run(self, splices: list[Splice]) -> None:
        """Returns once all have been carried out."""
        if len(splices) > 1 and self._floods >= FLOOD and self._begin():
            with self._turn:
                self._waiting.extend(splices)
                self._turn.notify()
            try:
                while (splice := self._take()) is not None:
                    splice.run()
            finally:  # none is carried out later, whatever a signal handler raises
                with self._turn:
                    self._waiting.clear()
                    while self._helping:
                        self._turn.wait()
        else:
            for splice in splices:
                splice.run()
        if sum(splice.moved >= MUCH for splice in splices) > 1:
            self._floods += 1
            self._flooded_at = time.monotonic()
        elif len(splices) > 1 or time.monotonic() - self._flooded_at > REST_S:
            self._floods = 0

    def rest(self) -> None:
        """Ends the second thread if there was no flood for a while."""
        if time.monotonic() - self._flooded_at >= REST_S:
            self.end()

    def end(self) -> None:
        """Ends the second thread, if there is one: not within `run`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            with self._turn:
                self._over = True
                self._turn.notify()
            thread.join()
            self._over = False

    def _begin(self) -> bool:
        if self._thread is None and time.monotonic() >= self._start_at:
            thread = threading.Thread(target=self._help, name="splice", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # a limit on processes: one thread does it, too
                self._start_at = time.monotonic() + REST_S
            else:
                self._thread = thread
        return self._thread is not None

    def _take(self) -> Splice | None:
        with self._turn:
            return self._waiting.popleft() if self._waiting else None

    def _help(self) -> None:
        while True:
            with self._turn:
                self._helping = False
                self._turn.notify()
                while not self._waiting and not self._over:
                    self._turn.wait()
                if self._over:
                    return
                splice = self._waiting.popleft()
                self._helping = True
            splice.run()


_splicers: "WeakSet[Splicer]" = WeakSet()


def _end_all() -> None:
    for splicer in list(_splicers):
        splicer.end()


os.register_at_fork(before=_end_all)
