"""Ctrl-C, SIGTERM and a closed terminal while a job runs in the foreground."""

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

from muster.agent.host.end_signals import Ask, EndSignals
from muster.probes.kernel import process

#: Called with what is asked for and the number of the signal.
Stop = Callable[[Ask, int], None]
#: Called with the number of a signal for the ranks.
PassOn = Callable[[int], None]


#: In the place of a signal.
_NO_MORE = 0


class Interrupts:
    """Handles SIGINT and SIGTERM inside a `with`, and SIGHUP if asked: none of them ends the process there. A signal
    that is ignored stays so (a shell ignores SIGINT for what it starts in the background, nohup SIGHUP).

    SIGUSR1 and SIGUSR2 are for the ranks, and are passed on.

    Outside of `calling` signals are only remembered: there is no job yet, or no job any more.
    """

    def __init__(self, *, hangup: bool = False) -> None:
        """`hangup`: SIGHUP as well, for a job that does not outlive this process."""
        self._numbers = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hangup else ()))
        self._signals = EndSignals()
        # The one queue whose `put` a signal handler may call, whatever the interrupted code was doing.
        self._asked: queue.SimpleQueue[tuple[Ask, int] | None] = queue.SimpleQueue()
        self._for_ranks: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        self._calling = self._taking_back = False
        #: How often something was asked for.
        self.asked = 0

    @property
    def first(self) -> int:
        """Number of the signal that came first; 0: none did."""
        return self._signals.first

    def __enter__(self) -> Self:
        for number in self._numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        for number in process.USER_SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.signal(number, self._take_for_ranks)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second signal may follow the first, until the process has ended with the exit code that it has by now.
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self.first else handler)

    @contextmanager
    def taking_back(self) -> Iterator[None]:
        """Inside, the first signal is a KeyboardInterrupt, so that what was begun is taken back, which a further one
        does not cut short; so is one that came before. `calling` hears of it as well: what was begun may be complete
        where the interrupt comes."""
        self._taking_back = True
        try:
            if self.first:
                raise KeyboardInterrupt
            yield
        finally:
            self._taking_back = False

    @contextmanager
    def calling(self, stop: Stop, pass_on: PassOn) -> Iterator[None]:
        """Inside, `stop` and `pass_on` are called for what is asked for, and was before, each in a thread of its own.
        The third is a KeyboardInterrupt here."""
        thread = threading.Thread(target=self._serve, args=(stop,), name="interrupts", daemon=True)
        # A daemon may take its time, and a stop must not wait for that.
        other = threading.Thread(target=self._serve_ranks, args=(pass_on,), name="signals for ranks", daemon=True)
        thread.start()
        other.start()
        self._calling = True
        try:
            yield
        finally:
            self._calling = False
            self._asked.put(None)
            self._for_ranks.put(_NO_MORE)
            thread.join(5)  # a stop that is being sent
            other.join(1)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        ask = self._signals.take(number, time.monotonic())
        if ask is None:
            return
        self.asked += 1
        if ask is not Ask.LEAVE:
            self._asked.put((ask, number))
        elif self._calling:
            raise KeyboardInterrupt
        if self._taking_back:
            self._taking_back = False
            raise KeyboardInterrupt

    def _take_for_ranks(self, number: int, frame: FrameType | None) -> None:
        self._for_ranks.put(number)

    def _serve(self, stop: Stop) -> None:
        while (asked := self._asked.get()) is not None:
            stop(*asked)

    def _serve_ranks(self, pass_on: PassOn) -> None:
        while True:
            came = {self._for_ranks.get()}
            while not self._for_ranks.empty():  # several of one signal are one
                came.add(self._for_ranks.get())
            for number in sorted(came - {_NO_MORE}):
                pass_on(number)
            if _NO_MORE in came:
                return
