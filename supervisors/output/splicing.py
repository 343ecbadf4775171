"""Moves the output of several ranks at once: while there is much of it, with the help of a second thread.

The second thread knows descriptors and numbers only: within a call of `Splicer.run` it takes splices from the same list
as the caller, and behind the call it does nothing. So all that belongs to a log (gaps, index, rotation, counts) stays
with one thread. Where no core is free for the second thread, the caller does it all.

A process with a second thread must not fork: before each os.fork() the thread is ended. It comes back with the next
flood.
"""

import _thread
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
#: Seconds in which a second thread that can begin has begun.
BEGIN_S = 1.0


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
        #: Number of the present second thread (0: there is none). One with another number returns.
        self._number = self._last_number = 0
        #: Whether it has begun to run, whether it runs, and whether it has a splice in its hands.
        self._began = self._alive = self._helping = False
        self._floods, self._flooded_at, self._start_at = 0, 0.0, 0.0
        _splicers.add(self)

    @property
    def helped(self) -> bool:
        """Whether there is a second thread."""
        return bool(self._number)

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
        if not self._number:
            return
        with self._turn:
            # One that does not begin has no memory for it: it holds nothing, and returns if it begins after all.
            self._turn.wait_for(lambda: self._began, BEGIN_S)
            self._number = 0
            self._turn.notify_all()
            while self._alive:
                self._turn.wait()

    def _begin(self) -> bool:
        if not self._number and time.monotonic() >= self._start_at:
            self._last_number += 1
            self._number, self._began = self._last_number, False
            try:
                # No threading.Thread: its start() waits for ever for a thread that has no memory to begin.
                _thread.start_new_thread(self._help, (self._number,))
            except (RuntimeError, MemoryError):  # a limit on processes or memory: one thread does it, too
                self._number, self._start_at = 0, time.monotonic() + REST_S
        return bool(self._number)

    def _take(self) -> Splice | None:
        with self._turn:
            return self._waiting.popleft() if self._waiting else None

    def _help(self, number: int) -> None:
        with self._turn:
            if number != self._number:
                return
            self._began = self._alive = True
            self._turn.notify_all()
        try:
            while (splice := self._next(number)) is not None:
                splice.run()
        finally:
            with self._turn:
                self._alive = self._helping = False
                self._turn.notify_all()

    def _next(self, number: int) -> Splice | None:
        with self._turn:
            self._helping = False
            self._turn.notify_all()
            while not self._waiting and number == self._number:
                self._turn.wait()
            if number != self._number:
                return None
            self._helping = True
            return self._waiting.popleft()


_splicers: "WeakSet[Splicer]" = WeakSet()


def _end_all() -> None:
    for splicer in list(_splicers):
        splicer.end()


os.register_at_fork(before=_end_all)
