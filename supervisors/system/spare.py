"""Descriptors in reserve: at the limit muster closes them, so an answer, a fork or a stop is still possible.

The limit is about numbers, not counts: after prlimit has lowered it, closing a descriptor with a higher number does not
help. So muster first raises a lowered limit again, as far as this user may, and takes the reserve before other
descriptors, so that its numbers are low.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar, TypeVarTuple

from muster.supervisors.system import descriptors

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def _nothing(_: object = None) -> None:
    """Nobody asked."""


class Spare:
    """Holds unused descriptors. Do not rely on their numbers."""

    def __init__(self, count: int, say: Callable[[str], object] = _nothing) -> None:
        """`say` is given a sentence when a limit was raised again."""
        self._count, self._say = count, say
        #: Called where there is nothing more to be had.
        self.on_exhausted: Callable[[], object] = _nothing
        self._fds: list[int] = []
        self.fill()

    @property
    def full(self) -> bool:
        """Whether all are held."""
        return len(self._fds) >= self._count

    def fill(self) -> bool:
        """Takes as many as there are; returns whether these are all."""
        with contextlib.suppress(OSError):
            while not self.full:
                self._fds.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        return self.full

    def raise_limit(self) -> bool:
        """Takes back what somebody has lowered of it; whether there was something to take."""
        if not descriptors.raise_again():
            return False
        self._say("somebody lowered the limit of open files of this process (prlimit): it was raised again")
        return True

    def make_room(self) -> bool:
        """At the limit: raises what somebody has lowered of it, else gives the reserve back. False where neither can be
        done: another try fails as well."""
        if self.raise_limit() or self.release():
            return True
        self.on_exhausted()
        return False

    def release(self) -> bool:
        """Gives all back; returns whether there were some."""
        had = bool(self._fds)
        while self._fds:
            os.close(self._fds.pop())
        return had


class Reserve:
    """Descriptors for work that must not fail at the limit: given up while it lasts, taken again behind it. Threads may
    share it."""

    def __init__(self, count: int) -> None:
        self._spare, self._lock, self._users = Spare(count), threading.Lock(), 0

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """While the body runs."""
        with self._lock:
            self._users += 1
            self._spare.release()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._spare.fill()

    def call(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """The result of `function(*args)`, with the reserve given up while it runs."""
        with self.lent():
            return function(*args)
