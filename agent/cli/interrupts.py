"""Ctrl-C while a job runs in the foreground."""

import queue
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

_END = 0


class Interrupts:
    """Takes SIGINT and SIGTERM inside a `with`: calls `stop(False)` for the first and `stop(True)`, kill, for the
    second, in a thread; the third is a KeyboardInterrupt here.

    Before `begin` signals are only remembered, for then there is no job yet. A signal that is ignored stays so (a
    shell ignores SIGINT for what it starts in the background).
    """

    def __init__(self, stop: Callable[[bool], None]) -> None:
        self._stop = stop
        # The one queue whose `put` a signal handler may call, whatever the interrupted code was doing.
        self._asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._count = 0
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        self._thread = threading.Thread(target=self._serve, name="interrupts", daemon=True)

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._asked.put(_END)
        if kind is None and self._thread.ident is not None:
            self._thread.join(5)  # a stop that is being sent

    def begin(self) -> None:
        """There is a job now."""
        self._thread.start()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 2:
            raise KeyboardInterrupt
        self._asked.put(number)

    def _serve(self) -> None:
        kill = False
        while self._asked.get() != _END:
            self._stop(kill)
            kill = True
