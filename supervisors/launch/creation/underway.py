"""Creates processes while the event loop continues, so that a program that hangs delays nothing else.

Such work is a generator. It yields the pidfd of a process whose end it waits for, with the longest wait in seconds, and
the caller sends it whether that process has ended. Closing the generator ends what it has created.
"""

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

from muster.supervisors.system.loop import Alarm, Loop

T = TypeVar("T")

Waiting: TypeAlias = Generator[tuple[int, float], bool, T]


def _nothing() -> None:
    """The owner of the loop looks by itself behind each batch of events."""


class Underway:
    """At most one piece of such work at a time."""

    def __init__(self, loop: Loop, due: Callable[[], None] = _nothing) -> None:
        """`due` is called when `go_on` would get further."""
        self._loop, self._due = loop, due
        self._alarm = Alarm(loop)
        self._work: Waiting[None] | None = None
        self._pidfd = -1
        self._ended: bool | None = None

    @property
    def lasts(self) -> bool:
        """Whether something is being created."""
        return self._work is not None

    def begin(self, work: Waiting[None]) -> None:
        """Begins it, and gets as far as its first wait. Raises what the work raises; then nothing is under way."""
        self._work = work
        self._advance(None)

    def go_on(self) -> None:
        """Gets as far as its next wait, if the present one is over. Raises what the work raises."""
        if self._ended is not None:
            ended, self._ended = self._ended, None
            self._advance(ended)

    def cancel(self) -> None:
        """Ends what was created."""
        work, self._work, self._ended = self._work, None, None
        self._forget()
        if work is not None:
            work.close()
            self._is_over()

    def _advance(self, ended: bool | None) -> None:
        work = self._work
        assert work is not None
        try:
            self._pidfd, seconds = next(work) if ended is None else work.send(ended)
        except StopIteration:
            self._is_over()
        except BaseException:
            self._is_over()
            raise
        else:
            self._loop.add(self._pidfd, lambda: self._wake(True))
            self._alarm.set(seconds, lambda: self._wake(False))

    def _is_over(self) -> None:
        self._work = None
        self._loop.later(0.0, self._loop.on_child)  # while it lasted nobody was waited for

    def _wake(self, ended: bool) -> None:
        self._forget()
        self._ended = ended
        self._due()

    def _forget(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove(self._pidfd)
        self._pidfd = -1
        self._alarm.cancel()
