"""Further tries of what failed, after pauses that grow."""

import threading
from collections.abc import Callable
from typing import TypeVar

from muster.probes.kernel.backoff import Backoff
from muster.supervisors.staging.reporting import Reporting
from muster.supervisors.staging.troubles import FileChanged, NotCopyable, TryAgain

#: Pauses between tries, in seconds; tries of a file that changes.
FIRST_PAUSE_S, LONGEST_PAUSE_S, CHANGES = 1.0, 60.0, 2

T = TypeVar("T")


class Tries:
    """Of one thing. It counts as failed in a row what brings not one byte more."""

    def __init__(self, most: int, over: threading.Event, reporting: Reporting) -> None:
        """`over`: there is to be no other try."""
        self._most, self._over, self._reporting = most, over, reporting
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._failures = self._changes = self._before = 0
        #: The furthest byte so far.
        self.reached = 0

    def run(self, work: Callable[[], T]) -> T:
        """Raises NotCopyable, and TryAgain when all tries are used up."""
        while True:
            try:
                return work()
            except FileChanged as error:
                self._changes += 1
                if self._changes >= CHANGES:
                    raise NotCopyable(f"{error}: copy it when nobody writes to it") from None
                self._again(error)
            except TryAgain as error:
                self._again(error)

    def _again(self, error: TryAgain) -> None:
        if self.reached > self._before:
            self._failures, self._before = 0, self.reached
            self._backoff.reset()
        self._failures += 1
        if self._failures >= self._most:
            raise TryAgain(f"{error} ({self._failures} tries in a row)") from None
        pause = self._backoff.next()
        self._reporting.retried(str(error), pause)
        if self._over.wait(pause):
            raise error
