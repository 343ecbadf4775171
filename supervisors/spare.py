"""Descriptors in reserve: at the limit they are given back, so that an answer, a fork or a stop is still possible."""

import contextlib
import errno
import os

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
