"""Descriptors in reserve: at the limit they are given back, so that an answer, a fork or a stop is still possible."""

import contextlib
import errno
import os
import threading
from collections.abc import Iterator

#: What open(2) and its like say at a limit of the process, or of the node.
FULL = (errno.EMFILE, errno.ENFILE)


class Spare:
    """Holds descriptors that lead nowhere. Nobody is to rely on their numbers."""

    def __init__(self, count: int) -> None:
        self._count = count
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
